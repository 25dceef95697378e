"""Each peer's dialect against a real HTTP server that uses it: requests and parsed answers."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from farrank_loadtest.targets import CandidateDocument, Target, TargetError
from farrank_loadtest.targets.address import open_target

DOCUMENTS = [CandidateDocument("a", "one"), CandidateDocument("b", "two é"), CandidateDocument("c", "")]


@dataclass
class Peer:
    """A server that records requests, and answers as scripted once a number of requests have arrived."""

    url: str = ""
    asked: list[tuple[str, Any]] = field(default_factory=list)
    answer: Callable[[], web.StreamResponse] = field(default=lambda: web.json_response([]))
    delay_s: float = 0.0
    answers_from: int = 1
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.method == "POST"
        assert request.content_type == "application/json"
        self.asked.append((request.path, await request.json()))
        if len(self.asked) >= self.answers_from:
            self.enough.set()
        await self.enough.wait()
        await asyncio.sleep(self.delay_s)
        return self.answer()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", peer.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    peer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield peer
    await runner.cleanup()


@pytest.fixture
async def opened(peer: Peer) -> AsyncIterator[Callable[[str], Target]]:
    targets = []

    def open_at(address: str) -> Target:
        targets.append(open_target(address.replace("URL", peer.url)))
        return targets[-1]

    yield open_at
    for target in targets:
        await target.close()


def results(*scores: tuple[int, float]) -> dict[str, Any]:
    return {"id": "x", "results": [{"index": i, "relevance_score": s} for i, s in scores], "meta": {}}


async def test_tei(peer: Peer, opened: Callable[[str], Target]) -> None:
    headers = {"x-total-time": "12", "x-queue-time": "3", "x-inference-time": "8", "x-compute-type": "cpu"}
    ranks = [{"index": 1, "score": 2.5}, {"index": 2, "score": 0.5}, {"index": 0, "score": -4}]
    peer.answer = lambda: web.json_response(ranks, headers=headers)
    answer = await opened("tei:URL").rerank("the query", DOCUMENTS, timeout_s=30)
    assert answer.scores == (-4.0, 2.5, 0.5)
    assert answer.stages_s == {"total": 0.012, "queue": 0.003, "inference": 0.008}
    texts = ["one", "two é", ""]
    wanted = {"query": "the query", "texts": texts, "raw_scores": True, "truncate": True}
    assert peer.asked == [("/rerank", wanted)]


async def test_tei_knows_no_names_of_rankers(peer: Peer, opened: Callable[[str], Target]) -> None:
    with pytest.raises(TargetError, match="has one model"):
        await opened("tei:URL").rerank("q", DOCUMENTS, ranker="other", timeout_s=30)
    assert peer.asked == []


@pytest.mark.parametrize(
    ("address", "path", "wanted"),
    [
        ("cohere:URL", "/v1/rerank", {"return_documents": False}),
        ("cohere:URL/", "/v1/rerank", {"return_documents": False}),
        ("cohere:URL/rerank", "/rerank", {"return_documents": False}),
        ("cohere:URL/v2/rerank", "/v2/rerank", {}),
        ("jina:URL", "/v1/rerank", {"return_documents": False}),
        ("jina:URL/v2/rerank", "/v2/rerank", {"return_documents": False}),
        ("jina:URL/below", "/below/v1/rerank", {"return_documents": False}),
    ],
)
async def test_cohere_and_jina(
    peer: Peer, opened: Callable[[str], Target], address: str, path: str, wanted: dict[str, Any]
) -> None:
    peer.answer = lambda: web.json_response(results((2, 0.9), (0, 0.5), (1, 0.1)))
    target = opened(address)
    answer = await target.rerank("the query", DOCUMENTS, ranker="m", timeout_s=30)
    assert answer.scores == (0.5, 0.1, 0.9)
    assert answer.stages_s == {}
    asked = {"query": "the query", "documents": ["one", "two é", ""], **wanted}
    assert peer.asked == [(path, {**asked, "model": "m"})]
    await target.rerank("the query", DOCUMENTS, timeout_s=30)
    assert peer.asked[1] == (path, asked)


@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
async def test_a_refusal_is_counted_by_its_status(
    peer: Peer, opened: Callable[[str], Target], status: int
) -> None:
    peer.answer = lambda: web.json_response({"error": "no room", "error_type": "overloaded"}, status=status)
    with pytest.raises(TargetError) as raised:
        await opened("tei:URL").rerank("q", DOCUMENTS, timeout_s=30)
    assert raised.value.status == f"HTTP {status}"
    assert "no room" in raised.value.message


async def test_a_redirect_is_not_followed(peer: Peer, opened: Callable[[str], Target]) -> None:
    peer.answer = lambda: web.Response(status=307, headers={"location": f"{peer.url}/elsewhere"})
    with pytest.raises(TargetError, match="HTTP 307"):
        await opened("jina:URL").rerank("q", DOCUMENTS, timeout_s=30)
    assert len(peer.asked) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("<html>", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"results": [{"index": 0}]}', "relevance_score"),
        (json.dumps(results((0, 1), (1, 1))), "2 scores for 3 documents"),
        (json.dumps(results((0, 1), (1, 1), (1, 1))), "two scores for index 1"),
        (json.dumps(results((0, 1), (1, 1), (3, 1))), "index 3 of 3 documents"),
        (json.dumps(results((0, 1), (1, math.nan), (2, 1))), "score nan for index 1"),
        (json.dumps(results((0, 1), (1, -math.inf), (2, 1))), "score -inf for index 1"),
        ('{"results": [{"index": Infinity, "relevance_score": 1}]}', "OverflowError"),
        ("[" * 100_000, "RecursionError"),
    ],
)
async def test_an_answer_that_is_none_is_a_failure(
    peer: Peer, opened: Callable[[str], Target], answer: str, said: str
) -> None:
    peer.answer = lambda: web.Response(text=answer)
    with pytest.raises(TargetError) as raised:
        await opened("cohere:URL").rerank("q", DOCUMENTS, timeout_s=30)
    assert raised.value.status == "malformed answer"
    assert said in raised.value.message


async def test_a_slow_peer_times_out_and_an_absent_one_is_unreachable(
    peer: Peer, opened: Callable[[str], Target]
) -> None:
    peer.delay_s = 5.0
    with pytest.raises(TargetError) as late:
        await opened("cohere:URL").rerank("q", DOCUMENTS, timeout_s=0.1)
    assert late.value.status == "timeout"
    with pytest.raises(TargetError) as absent:
        await opened("cohere:http://127.0.0.1:1").rerank("q", DOCUMENTS, timeout_s=30)
    assert absent.value.status == "unreachable"


async def test_calls_in_flight_do_not_wait_for_each_other(
    peer: Peer, opened: Callable[[str], Target]
) -> None:
    peer.answers_from = 150  # more than aiohttp's default of 100 connections
    peer.answer = lambda: web.json_response(results((0, 1), (1, 1), (2, 1)))
    target = opened("cohere:URL")
    await asyncio.gather(*(target.rerank("q", DOCUMENTS, timeout_s=30) for _ in range(150)))
    assert len(peer.asked) == 150
