"""How a test set is sent: bounded, patient with a full server, and ended by the first real failure."""

import asyncio
from collections.abc import Sequence

import pytest

from farrank_loadtest.accuracy import reranking
from farrank_loadtest.accuracy.reranking import Pace, rerank_run
from farrank_loadtest.errors import TargetFailed
from farrank_loadtest.targets import Answer, Document, TargetError
from farrank_loadtest.workloads import Call
from farrank_trec import Run

DOCUMENTS = tuple(Document(doc_id, doc_id * 3) for doc_id in "abc")


def candidates(count: int) -> list[Call]:
    return [Call(f"query {number}", DOCUMENTS, f"q{number}") for number in range(count)]


class Counting:
    """Scores later documents higher; fails the given queries, with a status for each attempt."""

    def __init__(self, failures: dict[str, list[str]] | None = None) -> None:
        self.failures = failures or {}
        self.asked: list[str] = []
        self.in_flight = self.most_in_flight = 0

    async def rerank(
        self, query: str, documents: Sequence[Document], *, ranker: str = "", timeout_s: float
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


def pace(in_flight: int = 3, counts: list[int] | None = None) -> Pace:
    return Pace(in_flight, 5.0, ([] if counts is None else counts).append)


async def test_so_many_are_in_flight_and_no_more() -> None:
    target, counts, finished = Counting(), list[int](), Run()

    await rerank_run(target, "r", candidates(10), pace(3, counts), finished)

    assert target.most_in_flight == 3
    assert counts == list(range(1, 11))
    assert [each.doc_id for each in finished["q7"]] == ["c", "b", "a"]


async def test_a_full_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranking, "_PAUSES_S", (0.001, 0.001))
    target, finished = Counting({"query 1": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}), Run()

    await rerank_run(target, "r", candidates(3), pace(), finished)

    assert target.asked.count("query 1") == 3
    assert len(finished) == 3


@pytest.mark.parametrize(("statuses", "attempts"), [(["HTTP 429"] * 9, 3), (["INVALID_ARGUMENT"], 1)])
async def test_a_failure_for_good_ends_it_and_names_the_query(
    monkeypatch: pytest.MonkeyPatch, statuses: list[str], attempts: int
) -> None:
    monkeypatch.setattr(reranking, "_PAUSES_S", (0.001, 0.001))
    target, finished = Counting({"query 4": statuses}), Run()

    with pytest.raises(TargetFailed) as failure:
        await rerank_run(target, "maxp", candidates(500), pace(), finished)

    assert str(failure.value) == f"ranker 'maxp', query 'q4': told to fail [{failure.value.status}]"
    assert target.asked.count("query 4") == attempts
    assert 0 < len(finished) < 500
    asked = len(target.asked)
    await asyncio.sleep(0.02)
    assert len(target.asked) == asked  # The others have ended with it.


async def test_cancelling_keeps_what_is_finished() -> None:
    target, finished, enough = Counting(), Run(), asyncio.Event()
    until_five = Pace(3, 5.0, lambda count: enough.set() if count == 5 else None)
    task = asyncio.create_task(rerank_run(target, "r", candidates(100_000), until_five, finished))
    await enough.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert 5 <= len(finished) < 100_000
