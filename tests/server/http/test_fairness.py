"""Callers by their addresses: calls of one caller with many connections wait behind one another."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from farrank_rankers.tokens import EncoderInput
from farrank_server.engine.device import work_queue
from support.engine_bench import QUERY, until
from support.http_endpoint import METHODS, OpenEndpoint

GREEDY, MODEST = 200, 10


def connected_from(address: str) -> aiohttp.TCPConnector:
    """Open connections from an address of the loopback network, one for each call."""
    return aiohttp.TCPConnector(local_addr=(address, 0), limit=0, force_close=True)


async def test_many_connections_are_one_caller(
    open_endpoint: OpenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tiny rankers do all this work in a few milliseconds.
    monkeypatch.setattr(work_queue, "QUANTUM_S", 1e-9)
    held, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def hold(inputs: Sequence[EncoderInput]) -> None:
        held.set()
        assert go_on.wait(300)

    async with (
        open_endpoint(hold) as opened,
        aiohttp.ClientSession(opened.listener.url, connector=connected_from("127.0.0.2")) as greedy,
        aiohttp.ClientSession(opened.listener.url, connector=connected_from("127.0.0.3")) as modest,
    ):

        async def ask(session: aiohttp.ClientSession, name: str, priority: str = "") -> None:
            options = {"ranker": "maxp"} | ({"priority": priority} if priority else {})
            body = {"query": QUERY, "documents": [{"text": QUERY}], "options": options}
            # A busy machine opens 220 connections slowly.
            headers = {"Connect-Timeout-Ms": "3600000"}
            async with session.post(f"{METHODS}Rerank", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                done.append(name)

        try:
            # It is on the device when all others arrive.
            asked = [asyncio.create_task(ask(greedy, "first"))]
            await until(lambda: held.is_set())
            later = [asyncio.create_task(ask(modest, "later", "PRIORITY_BATCH")) for _ in range(MODEST)]
            await until(lambda: opened.bench.waiting() >= MODEST)
            asked += [asyncio.create_task(ask(greedy, "greedy")) for _ in range(GREEDY)]
            await until(lambda: opened.bench.waiting() >= MODEST + GREEDY)
            asked += [asyncio.create_task(ask(modest, "modest")) for _ in range(MODEST)]
            await until(lambda: opened.bench.waiting() >= 2 * MODEST + GREEDY)
        finally:
            go_on.set()
        await asyncio.gather(*asked, *later)
    places = {
        name: [at for at, each in enumerate(done) if each == name] for name in ("greedy", "modest", "later")
    }
    # All calls of the greedy caller came first, and would go first in the order of due times.
    assert max(places["modest"]) < GREEDY / 2, places
    # Batch calls came before both, and still get their share.
    assert min(places["later"]) > min(places["greedy"])
    assert len(done) == 1 + GREEDY + 2 * MODEST


@pytest.mark.parametrize("method", ["Rerank", "SearchAndRerank"])
async def test_calls_that_can_wait_go_later_and_are_counted_apart(
    open_endpoint: OpenEndpoint, method: str
) -> None:
    held, go_on = threading.Event(), threading.Semaphore(0)
    done: list[str] = []

    def hold(inputs: Sequence[EncoderInput]) -> None:
        held.set()
        assert go_on.acquire(timeout=60)

    async with open_endpoint(hold) as opened:

        def tokens(priority: str) -> float:
            return opened.bench.count("farrank_priority_admitted_tokens", priority=priority)

        async def ask(priority: str) -> None:
            body: dict[str, Any] = {
                "query": "river",
                "options": {"ranker": "maxp", "priority": f"PRIORITY_{priority}"},
            }
            # One document each.
            body |= {"documents": [{"text": QUERY}]} if method == "Rerank" else {"k": 1}
            status, answer = await opened.post(f"{METHODS}{method}", body)
            assert status == 200, answer
            done.append(priority)

        try:
            # It is on the device when the others arrive.
            asked = [asyncio.create_task(ask("UNSPECIFIED"))]
            await until(lambda: held.is_set())
            of_first = tokens("interactive")
            assert (of_first > 0, tokens("batch")) == (True, 0)
            asked.append(asyncio.create_task(ask("BATCH")))
            await until(lambda: opened.bench.waiting() == 1)
            # Fewer than before if the estimate of the first was corrected in the meantime, but not more.
            assert 0 < tokens("interactive") <= of_first
            assert tokens("batch") > 0
            asked.append(asyncio.create_task(ask("INTERACTIVE")))
            await until(lambda: opened.bench.waiting() == 2)
            # One batch at a time, because the answers of two would race each other to their callers.
            for number in (1, 2, 3):
                go_on.release()
                await until(lambda number=number: len(done) == number)  # type: ignore[misc]
        finally:
            go_on.release(100)
        await asyncio.gather(*asked)

        def waits(priority: str) -> float:
            name = "farrank_priority_queue_duration_seconds_count"
            return opened.bench.count(name, priority=priority)

        await until(lambda: (waits("interactive"), waits("batch")) == (2, 1))
        assert done == ["UNSPECIFIED", "INTERACTIVE", "BATCH"]
        assert (tokens("interactive"), tokens("batch")) == (0, 0)
