"""Callers over real sockets that send half a request or read no answer; others still get answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from farrank.v1 import rerank_pb2 as pb
from farrank_server.access.callers import Entry
from farrank_server.config.schema import LimitsConfig, ListenConfig
from farrank_server.listen import GrpcListener
from farrank_server.metrics import Endpoint, Metrics
from farrank_server.service import receiving, unread
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswers
from farrank_server.wire import standard_services
from farrank_server.wire.handlers import handlers
from support.raw_http2 import UnreadAnswers as RawCaller
from support.waiting import until

RERANK = "/farrank.v1.RerankService/Rerank"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


class Answering(RerankService):
    def __init__(self) -> None:
        pass

    async def Rerank(
        self, request: pb.RerankRequest, deadline_s: float | None, entry: Entry
    ) -> pb.RerankResponse:
        return pb.RerankResponse(query_tokens_cut=7)


@asynccontextmanager
async def opened(limits: LimitsConfig, metrics: Metrics) -> AsyncIterator[tuple[int, Any]]:
    endpoint = GrpcListener(ListenConfig(port=0), limits)
    guard = Guard(Endpoint.GRPC, metrics, {"maxp"}, "maxp")
    answers, budget = UnreadAnswers(limits, metrics), ReceivingBudget(limits, metrics)
    endpoint.show_open(metrics)
    await endpoint.open(handlers(Answering(), guard, limits, answers, budget))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{endpoint.port}") as channel:
            yield endpoint.port, channel
    finally:
        await endpoint.close(0)
        answers.close()


async def begin(channel: Any, path: str) -> Any:
    """Begin a call and send no request."""
    call = channel.stream_stream(path)()
    # The headers are sent as soon as there is a connection.
    await call.wait_for_connection()
    return call


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call.read(), 30)
    return caught.value


async def answered(channel: Any) -> None:
    """Check that a call and a health check get answers."""
    asked = pb.RerankRequest(query="q").SerializeToString()
    data = await channel.unary_unary(RERANK)(asked, timeout=30)
    assert pb.RerankResponse.FromString(data).query_tokens_cut == 7
    await HealthStub(channel).Check(HealthCheckRequest(), timeout=30)


def shown(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"farrank_{name}", labels) or 0.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for requests, and for callers that read, longer than a test takes on a busy machine."""
    for module, name in (
        (receiving, "MAX_WAIT_S"),
        (receiving, "ARRIVAL_S"),
        (unread, "UNREAD_S"),
        (unread, "UNREAD_REFUSAL_S"),
        (standard_services, "ARRIVAL_S"),
    ):
        monkeypatch.setattr(module, name, 600.0)
    # No health check gives way to another because the event loop was late to read it.
    monkeypatch.setattr(standard_services, "MAX_PENDING_REQUESTS", 10_000)


@pytest.mark.usefixtures("patient")
async def test_half_sent_requests_of_one_caller_leave_room_for_others() -> None:
    metrics = Metrics()
    # Room for three requests in receipt.
    limits = LimitsConfig(max_request_bytes=2**20, max_receiving_bytes=9 * 2**20)
    async with opened(limits, metrics) as (port, channel):
        attacker = await RawCaller.open(port, "127.0.0.2")
        for _ in range(100):
            attacker.begin(RERANK)
        await until(lambda: shown(metrics, "receiving_waiting") == 98)
        assert shown(metrics, "receiving_bytes") == 6 * 2**20
        assert shown(metrics, "open_calls", kind="calls") == 100
        await answered(channel)
        # An unsent request gives its room back when its caller goes.
        await attacker.close()
        await until(lambda: shown(metrics, "receiving_bytes") == 0)
        await until(lambda: shown(metrics, "receiving_waiting") == 0)
        await until(lambda: shown(metrics, "open_calls", kind="calls") == 0)


@pytest.mark.usefixtures("patient")
async def test_answers_of_one_caller_that_it_does_not_read_leave_places_for_others() -> None:
    metrics = Metrics()
    async with opened(LimitsConfig(max_concurrent_calls=16), metrics) as (port, channel):
        attackers = [await RawCaller.open(port, "127.0.0.2") for _ in range(12)]
        asked = pb.RerankRequest(query="q").SerializeToString()
        for each in attackers:
            for _ in range(100):
                await each.call(RERANK, asked)
                await each.call(CHECK, b"")
        refused = "open_calls_refused_total"
        # It gets 15/16 of 32 places, and half of 1,024. On a busy machine fewer refusals have been seen; the
        # reason is not known. The places that it holds are exact.
        await until(lambda: shown(metrics, refused, kind="calls") >= 1100)
        await until(lambda: shown(metrics, "open_calls", kind="calls") == 30)
        await until(lambda: shown(metrics, refused, kind="health checks") >= 600)
        await until(lambda: shown(metrics, "open_calls", kind="health checks") == 512)
        assert shown(metrics, "unread_answers") >= 30
        assert shown(metrics, "unread_answer_bytes") > 0
        for _ in range(20):
            await answered(channel)
        for each in attackers:
            await each.close()
        await until(lambda: shown(metrics, "open_calls", kind="calls") == 0)
        await until(lambda: shown(metrics, "unread_answers") == 0)


@pytest.mark.parametrize("path", [CHECK, WATCH])
async def test_half_sent_checks_give_way_to_new_ones(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(standard_services, "ARRIVAL_S", 600.0)
    async with opened(LimitsConfig(), Metrics()) as (port, channel):
        # From the address of the others, as if through a proxy.
        attackers = [await RawCaller.open(port) for _ in range(5)]
        for each in attackers:
            for _ in range(60):
                each.begin(path)
        # The first 268 have given way, and the last 32 hold all places. Before that, a check that a busy
        # machine reads late would give way as well.
        ends: list[int] = []
        readers = [asyncio.create_task(each.read_ends(ends)) for each in attackers]
        await until(lambda: len(ends) == 300 - standard_services.MAX_PENDING_REQUESTS)
        for _ in range(20):
            await answered(channel)
        for each in attackers:
            await each.close()
        await asyncio.wait(readers)


@pytest.mark.parametrize("path", [RERANK, CHECK, WATCH])
async def test_each_for_so_long(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(standard_services, "ARRIVAL_S", 0.2)
    async with opened(LimitsConfig(default_timeout_s=0.2), Metrics()) as (_, channel):
        error = await error_of(await begin(channel, path))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.details() == "request: did not arrive within 0.2 s"


@pytest.mark.parametrize("path", [RERANK, CHECK, WATCH])
async def test_none_at_all(path: str) -> None:
    async with opened(LimitsConfig(), Metrics()) as (_, channel):
        call = await begin(channel, path)
        await call.done_writing()
        error = await error_of(call)
        assert (error.code(), error.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "request: is missing",
        )


async def test_messages_that_grpc_refuses_by_itself_are_counted() -> None:
    metrics = Metrics()
    limits = LimitsConfig(max_request_bytes=2**20)
    async with opened(limits, metrics) as (_, channel):
        call: Any = channel.unary_unary(RERANK)
        for message, compression, code in (
            (b"a" * 2**22, grpc.Compression.NoCompression, grpc.StatusCode.RESOURCE_EXHAUSTED),
            (b"a" * 2**19, grpc.Compression.Gzip, grpc.StatusCode.UNIMPLEMENTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(message, compression=compression, timeout=30)
            assert caught.value.code() is code
        await until(lambda: shown(metrics, "requests_not_received_total", why="empty") == 1)
        await until(lambda: shown(metrics, "requests_not_received_total", why="cancelled") == 1)
        await until(lambda: shown(metrics, "receiving_bytes") == 0)
        await answered(channel)
