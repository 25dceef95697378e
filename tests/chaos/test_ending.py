"""SIGTERM ends a server whatever hangs in it: real processes, each with one hanging part."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from support.engine_bench import until
from support.sick_parts import SickServer, sick_server

# No hang here ends before the test gives up.
FOR_GOOD_S = 3600
GIVEN_UP_AFTER_S = 60.0

REQUEST = pb.RerankRequest(query="river", documents=[pb.Document(text="the river")])


async def strike(server: SickServer, words: str, times: int) -> list[asyncio.Task[object]]:
    """Make calls meet a failure, and leave them pending."""
    calls: list[asyncio.Task[object]] = []
    before = len(server.struck)
    for number in range(before, before + times):
        server.order(words)
        # Calls are sent until one meets the failure, because an order may be read after a call. They are sent
        # one at a time: the more inputs a batch has, the longer it takes before it counts as hung.
        sent: asyncio.Task[object] | None = None
        while len(server.struck) <= number:
            if sent is None or sent.done():
                sent = asyncio.create_task(call(server, "Rerank", REQUEST))
                calls.append(sent)
            await asyncio.sleep(0.05)
    return calls


async def call(server: SickServer, method: str, request: Message) -> object:
    """Call a method on its own connection."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        return await getattr(stub, method)(request, timeout=300)


HANGS = f"hangs {FOR_GOOD_S}"


@pytest.mark.parametrize(
    ("words", "times", "searches"),
    [
        pytest.param(HANGS, 1, False, id="hung in a batch"),
        pytest.param(f"loads {FOR_GOOD_S}", 1, False, id="hung while it is loaded again"),
        pytest.param(f"tokenizer {FOR_GOOD_S}", 2, False, id="hung tokenizer threads"),
        pytest.param("", 0, True, id="search process stopped"),
    ],
)
async def test_sigterm_ends_the_process_in_every_state(
    tiny_rankers: dict[str, Path], tmp_path: Path, words: str, times: int, searches: bool
) -> None:
    settings = ["--set=listen.drain_timeout_s=1", f"--set=first_stage.hang_after_s={FOR_GOOD_S}"]
    async with sick_server(tmp_path, tiny_rankers, searches=searches, settings=settings) as server:
        searching = server.search_processes()
        calls = [await hung_search(server, each) for each in searching]
        calls += await strike(server, words, times)
        server.process.send_signal(signal.SIGTERM)
        assert await ended(server) == 0, server.log.read_text()[-3000:]
        await until(lambda: not any(Path(f"/proc/{each}").exists() for each in searching))
        await given_up(calls)


async def test_sigterm_ends_a_process_that_has_lost_its_device(
    tiny_rankers: dict[str, Path], tmp_path: Path
) -> None:
    # A hung search keeps the search process, which otherwise ends by itself, in the drain.
    settings = [f"--set=listen.drain_timeout_s={FOR_GOOD_S}", f"--set=first_stage.hang_after_s={FOR_GOOD_S}"]
    async with sick_server(tmp_path, tiny_rankers, settings=settings) as server:
        (searching,) = server.search_processes()
        calls = [await hung_search(server, searching)]
        # A second thread hangs while the first one does, so there is no third. The first has loaded the
        # rankers by then: a hang in loading would be detected far later than one in a batch.
        calls += await strike(server, HANGS, 1)
        await until(lambda: server.metric("farrank_worker_restarts_total") == 1)
        await until(lambda: server.metric("farrank_device_state", state="ready") == 1)
        calls += await strike(server, HANGS, 1)
        await until(lambda: "the device is lost, or too many threads hang; ending" in server.log.read_text())
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        os.kill(searching, signal.SIGCONT)
        assert await ended(server) == 1, server.log.read_text()[-3000:]
        await until(lambda: not Path(f"/proc/{searching}").exists())
        await given_up(calls)


async def hung_search(server: SickServer, process: int) -> asyncio.Task[object]:
    """Stop the search process, and return a call that waits for it."""
    os.kill(process, signal.SIGSTOP)
    search = asyncio.create_task(call(server, "SearchAndRerank", pb.SearchAndRerankRequest(query="river")))
    await until(lambda: server.metric("farrank_requests_in_flight", method="SearchAndRerank") == 1)
    return search


async def ended(server: SickServer) -> int:
    """Wait for the end of the process, and return its exit status."""
    return await asyncio.wait_for(asyncio.to_thread(server.process.wait), GIVEN_UP_AFTER_S)


async def given_up(calls: Sequence[asyncio.Task[object]]) -> None:
    """Cancel calls that will not be answered."""
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
