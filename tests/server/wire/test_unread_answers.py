"""Callers that never make room for their answers, over a raw socket: bounded in bytes and in time."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from farrank.v1 import rerank_pb2 as pb
from farrank_server.config.schema import LimitsConfig, ListenConfig, ServerConfig
from farrank_server.listen import GrpcListener
from farrank_server.metrics import Endpoint
from farrank_server.service import unread
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from farrank_server.wire.handlers import handlers
from support.engine_bench import Bench, Wrapped, opened_bench
from support.memory_first_stage import in_memory
from support.raw_http2 import UnreadAnswers as DeafCaller
from support.waiting import until

METHOD = "/farrank.v1.RerankService/Rerank"
TEXT = "the sea and the river " * 5_000
ASKED = pb.RerankRequest(
    query="sea",
    documents=[pb.Document(text=TEXT)],
    options=pb.RerankOptions(return_texts=True, max_chunks=1),
).SerializeToString()

# One connection's share, a quarter, has room for two answers but not for three.
MAX_BYTES = 10 * len(TEXT)

REFUSED = {"door": "grpc", "ranker": "maxp", "reason": "answers_unread"}


@dataclass
class Opened:
    bench: Bench[Wrapped]
    port: int

    def count(self, name: str, **labels: str) -> float:
        return self.bench.count(f"farrank_{name}", **labels)


@pytest_asyncio.fixture
async def opened(tiny_rankers: dict[str, Path]) -> AsyncIterator[Opened]:
    config = ServerConfig(limits=LimitsConfig(max_unread_bytes=MAX_BYTES))
    async with opened_bench(tiny_rankers, Wrapped) as bench:
        listener = GrpcListener(ListenConfig(port=0, metrics_port=None), config.limits)
        service = RerankService(config, bench.engine, await in_memory(bench, None), bench.metrics)
        answers = UnreadAnswers(config.limits, bench.metrics)
        guard = Guard(Endpoint.GRPC, bench.metrics, {"maxp"}, "maxp")
        await listener.open(
            handlers(service, guard, config.limits, answers, ReceivingBudget(config.limits, bench.metrics))
        )
        yield Opened(bench, listener.port)
        await listener.close(0)
        answers.close()


async def ranked(opened: Opened) -> pb.RerankResponse:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{opened.port}") as channel:
        call: Any = channel.unary_unary(METHOD)
        return pb.RerankResponse.FromString(await call(ASKED, timeout=30))


async def test_a_connection_has_its_share_of_unread_answers_and_no_more(opened: Opened) -> None:
    deaf = await DeafCaller.open(opened.port)
    for _ in range(8):
        await deaf.call(METHOD, ASKED)
    await until(lambda: opened.count("rejections_total", **REFUSED) == 6)
    held = opened.count("unread_answer_bytes")
    assert 2 * len(TEXT) <= held < MAX_BYTES // 4
    # Other callers get answers in the meantime, and answers that are read no longer count.
    assert (await ranked(opened)).results[0].text == TEXT
    await until(lambda: opened.count("unread_answer_bytes") == held)
    await deaf.close()
    await until(lambda: opened.count("unread_answer_bytes") == 0)


async def test_all_connections_together_have_a_bound(opened: Opened) -> None:
    callers = [await DeafCaller.open(opened.port) for _ in range(12)]
    for each in callers:
        await each.call(METHOD, ASKED)
    # One caller, identified by its address, has half of all.
    await until(lambda: opened.count("rejections_total", **REFUSED) == 7)
    assert opened.count("unread_answer_bytes") <= MAX_BYTES * 0.55
    others = [await DeafCaller.open(opened.port, f"127.0.0.{number}") for number in range(2, 8)]
    for each in others:
        await each.call(METHOD, ASKED)
    await until(lambda: opened.count("rejections_total", **REFUSED) > 7)
    assert opened.count("unread_answer_bytes") <= MAX_BYTES
    callers += others
    # A small answer is never refused for this.
    async with grpc.aio.insecure_channel(f"127.0.0.1:{opened.port}") as channel:
        small = pb.RerankRequest(query="sea", documents=[pb.Document(text="a")]).SerializeToString()
        call: Any = channel.unary_unary(METHOD)
        assert await call(small, timeout=30)
    for each in callers:
        await each.close()
    await until(lambda: opened.count("unread_answer_bytes") == 0)


async def test_what_is_not_read_in_time_ends_its_connection(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "SWEEP_S", 0.05)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{opened.port}") as channel:
        call: Any = channel.unary_unary(METHOD)
        await call(ASKED, timeout=30)
        monkeypatch.setattr(unread, "UNREAD_S", 0.2)
        monkeypatch.setattr(unread, "SLOWEST_BYTES_PER_S", 1e9)
        deaf = await DeafCaller.open(opened.port)
        await deaf.call(METHOD, ASKED)
        assert await asyncio.wait_for(deaf.is_ended(), 60)
        await until(lambda: opened.count("unread_answer_bytes") == 0)
        assert opened.count("unread_connections_ended_total", door="grpc") >= 1
        # The connections of other callers stay open.
        monkeypatch.undo()
        assert await call(ASKED, timeout=30)
        assert channel.get_state() is grpc.ChannelConnectivity.READY
    await deaf.close()
