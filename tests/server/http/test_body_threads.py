"""Large bodies of one caller delay the bodies of others by no more than a fair share."""

import asyncio
import gzip
import json
import threading
from collections.abc import Callable

import pytest
from google.protobuf.message import Message

from farrank_calls.fairness.fair_order import Account
from farrank_calls.fairness.fair_queue import FairSlots
from farrank_server.config.schema import LimitsConfig
from farrank_server.http import body_threads, connect
from farrank_server.http.protobuf_json import message_of_json
from support.http_connection import Connections, request
from support.http_endpoint import METHODS, OpenEndpoint
from support.waiting import until

RERANK = f"{METHODS}Rerank"
GREEDY, MODEST = "127.0.0.2", "127.0.0.3"


def body(query: str, documents: int, characters: int) -> bytes:
    """Make a request whose documents the tiny ranker cuts to a few tokens."""
    texts = [{"text": "river " * (characters // 6)}] * documents
    return json.dumps({"query": query, "documents": texts}).encode()


def large(query: str) -> bytes:
    return body(query, 2, body_threads.SMALL_BYTES)


class HeldReading:
    """Delays the reading of large bodies until `go_on`. `begun` lists their queries in reading order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.waiting: list[str] = []
        self.go_on = threading.Event()
        self._read = message_of_json
        monkeypatch.setattr(connect, "message_of_json", self._hold)
        waiting = self.waiting

        class Watched(FairSlots):
            async def take(self, account: Account) -> Callable[[], None]:
                waiting.append(account.name)
                return await super().take(account)

        monkeypatch.setattr(body_threads, "FairSlots", Watched)

    def _hold(self, data: bytes, kind: type[Message], limits: LimitsConfig) -> Message:
        if len(data) > body_threads.SMALL_BYTES:
            self.begun.append(json.loads(data)["query"])
            assert self.go_on.wait(60)
        return self._read(data, kind, limits)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldReading:
    return HeldReading(monkeypatch)


async def test_a_small_body_is_answered_while_large_ones_are_read(
    open_endpoint: OpenEndpoint, connect: Connections, held: HeldReading
) -> None:
    async with open_endpoint() as endpoint:
        greedy = [await connect(endpoint.listener.port, GREEDY) for _ in range(3)]
        modest = await connect(endpoint.listener.port, MODEST)
        try:
            for number, each in enumerate(greedy):
                await each.send(request(RERANK, large(f"greedy {number}")))
            await until(lambda: len(held.waiting) == 3 and bool(held.begun))
            # Its answer is also too long for the event loop.
            small = body("modest", 400, 200)
            answers = [await asyncio.wait_for(modest.ask(RERANK, small), 60)]
            packed = gzip.compress(small)
            asked = modest.ask(RERANK, packed, "Content-Encoding: gzip\r\n")
            answers.append(await asyncio.wait_for(asked, 60))
            assert [each.status for each in answers] == [200, 200], answers
            assert [len(json.loads(each.body)["results"]) for each in answers] == [400, 400]
            assert held.begun == ["greedy 0"]
        finally:
            held.go_on.set()
        assert [(await each.answer()).status for each in greedy] == [200] * 3


async def test_large_bodies_are_read_in_the_fair_order_of_their_callers(
    open_endpoint: OpenEndpoint, connect: Connections, held: HeldReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_threads, "QUANTUM_S", 1e-9)
    async with open_endpoint() as endpoint:
        callers = [await connect(endpoint.listener.port, GREEDY) for _ in range(4)]
        callers.append(await connect(endpoint.listener.port, MODEST))
        try:
            for number, each in enumerate(callers):
                await each.send(request(RERANK, large(f"{number}")))
                await until(lambda number=number: len(held.waiting) == number + 1)  # type: ignore[misc]
        finally:
            held.go_on.set()
        assert [(await each.answer()).status for each in callers] == [200] * 5
    assert held.begun == ["0", "4", "1", "2", "3"]


async def test_a_body_whose_deadline_passes_while_it_waits_is_not_read(
    open_endpoint: OpenEndpoint, connect: Connections, held: HeldReading
) -> None:
    async with open_endpoint() as endpoint:
        first, late = [await connect(endpoint.listener.port, GREEDY) for _ in range(2)]
        try:
            await first.send(request(RERANK, large("first")))
            await until(lambda: held.begun == ["first"])
            asked = late.ask(RERANK, large("late"), "Connect-Timeout-Ms: 1000\r\n")
            answer = await asyncio.wait_for(asked, 60)
            assert answer.status == 504
            said = json.loads(answer.body)["message"]
            assert said == "the deadline passed before the request was read"
        finally:
            held.go_on.set()
        assert (await first.answer()).status == 200
        # The room and the turn of the late request are free again.
        assert (await late.ask(RERANK, large("next"))).status == 200
        assert endpoint.bench.count("farrank_receiving_bytes") == 0
    assert held.begun == ["first", "next"]
