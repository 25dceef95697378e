"""Sending a test set: with bounded concurrency, patient with a full server, ended by the first failure."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from farrank_loadtest.accuracy import reranking
from farrank_loadtest.accuracy.reranking import RunMaker
from farrank_loadtest.errors import TargetFailed
from farrank_loadtest.targets import Answer, CandidateDocument, TargetError
from farrank_loadtest.workloads import Call
from farrank_trec import read_run

DOCUMENTS = tuple(CandidateDocument(doc_id, doc_id * 3) for doc_id in "abc")


def candidates(count: int) -> list[Call]:
    return [Call(f"query {number}", DOCUMENTS, f"q{number}") for number in range(count)]


class Counting:
    """Scores later documents higher. Fails the given queries, with a status for each attempt."""

    def __init__(self, failures: dict[str, list[str]] | None = None) -> None:
        self.failures = failures or {}
        self.asked: list[str] = []
        self.in_flight = self.most_in_flight = 0

    async def rerank(
        self, query: str, documents: Sequence[CandidateDocument], *, ranker: str = "", timeout_s: float
    ) -> Answer:
        self.asked.append(query)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0.001)
        self.in_flight -= 1
        if statuses := self.failures.get(query):
            raise TargetError(statuses.pop(0), "told to\nfail")
        return Answer(tuple(float(place) for place, _ in enumerate(documents)))

    async def close(self) -> None:
        pass


@pytest.fixture
def counts() -> list[int]:
    """The number of finished queries whenever one finishes."""
    return []


@pytest.fixture
def maker(tmp_path: Path, counts: list[int]) -> RunMaker:
    return RunMaker("localhost:1", False, 3, 5.0, tmp_path, lambda ranker, queries: counts.append)


async def test_so_many_are_in_flight_and_no_more(maker: RunMaker, counts: list[int], tmp_path: Path) -> None:
    target = Counting()

    run = await maker.rerank(target, "r", candidates(10), "")

    assert target.most_in_flight == 3
    assert counts == list(range(1, 11))
    assert [each.doc_id for each in run["q7"]] == ["c", "b", "a"]
    assert list(run) == [f"q{number}" for number in range(10)]
    assert read_run(tmp_path / "r.trec") == run
    assert maker.kept == [(tmp_path / "r.trec", 10, 10)]


async def test_a_full_server_is_asked_again(maker: RunMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranking, "_PAUSES_S", (0.001, 0.001))
    target = Counting({"query 1": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]})

    run = await maker.rerank(target, "r", candidates(3), "")

    assert target.asked.count("query 1") == 3
    assert len(run) == 3


@pytest.mark.parametrize(("statuses", "attempts"), [(["HTTP 429"] * 9, 3), (["INVALID_ARGUMENT"], 1)])
async def test_a_failure_for_good_ends_it_and_names_the_query(
    maker: RunMaker, monkeypatch: pytest.MonkeyPatch, statuses: list[str], attempts: int
) -> None:
    monkeypatch.setattr(reranking, "_PAUSES_S", (0.001, 0.001))
    target = Counting({"query 4": statuses})

    with pytest.raises(TargetFailed) as failure:
        await maker.rerank(target, "maxp", candidates(500), "")

    assert str(failure.value) == f"ranker 'maxp', query 'q4': told to fail [{failure.value.status}]"
    assert target.asked.count("query 4") == attempts
    ((_, finished, of),) = maker.kept
    assert (0 < finished < 500, of) == (True, 500)
    asked = len(target.asked)
    await asyncio.sleep(0.02)
    assert len(target.asked) == asked  # the others have ended with it


async def test_cancelling_keeps_what_is_finished(tmp_path: Path) -> None:
    enough = asyncio.Event()

    def told(done: int) -> None:
        if done == 5:
            enough.set()

    maker = RunMaker("localhost:1", False, 3, 5.0, tmp_path, lambda ranker, queries: told)
    task = asyncio.create_task(maker.rerank(Counting(), "r", candidates(100_000), ".2"))
    await enough.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert 5 <= len(read_run(tmp_path / "r.2.trec")) < 100_000
