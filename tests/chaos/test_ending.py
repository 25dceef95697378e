"""SIGTERM ends a server whatever hangs in it: real processes, each with one part that hangs."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from support.engine_bench import until
from support.sick_parts import SickServer, sick_server

# Nothing that hangs here comes back before this test has given up.
FOR_GOOD_S = 3600
GIVEN_UP_AFTER_S = 60.0

REQUEST = pb.RerankRequest(query="river", documents=[pb.Document(text="the river")])


async def strike(server: SickServer, words: str, times: int) -> list[asyncio.Task[object]]:
    """Have calls meet a sickness, and leave them waiting."""
    calls: list[asyncio.Task[object]] = []
    for number in range(times):
        server.order(words)

        async def call() -> object:
            async with grpc.aio.insecure_channel(server.address) as channel:
                stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
                return await stub.Rerank(REQUEST, timeout=300)

        # Sent until one meets it: an order may be read after a call.
        while len(server.struck) <= number:
            calls.append(asyncio.create_task(call()))
            await asyncio.sleep(0.5)
    return calls


@pytest.mark.parametrize(
    ("words", "times"),
    [
        pytest.param([f"hangs {FOR_GOOD_S}"], 1, id="hung in a batch"),
        pytest.param([f"loads {FOR_GOOD_S}"], 1, id="hung while it is loaded again"),
        pytest.param([f"tokenizer {FOR_GOOD_S}"], 2, id="hung tokenizer threads"),
        pytest.param(["stop lucene"], 1, id="search process stopped"),
    ],
)
async def test_sigterm_ends_the_process_in_every_state(
    tiny_rankers: dict[str, Path], tmp_path: Path, words: Sequence[str], times: int
) -> None:
    searches = words == ["stop lucene"]
    settings = ["--set=listen.drain_timeout_s=1"]
    async with sick_server(tmp_path, tiny_rankers, searches=searches, settings=settings) as server:
        calls: list[asyncio.Task[object]] = []
        searching = server.search_processes()
        if searches:
            os.kill(searching[0], signal.SIGSTOP)
        else:
            calls = await strike(server, words[0], times)
        server.process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(asyncio.to_thread(server.process.wait), GIVEN_UP_AFTER_S)
        assert code == 0, server.log.read_text()[-3000:]
        await until(lambda: not any(Path(f"/proc/{each}").exists() for each in searching))
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
