"""Many queries through one client, and the scores of a ranking for a TREC run."""

import threading
import time

import pytest
from google.protobuf.message import Message

from farrank.v1 import rerank_pb2 as pb
from farrank_client import AsyncClient, Client, InvalidArgument, Ranking
from farrank_client.client import CALLS_IN_FLIGHT
from farrank_client.testing import MockTransport


def test_many_queries_keep_their_order_with_several_in_flight() -> None:
    at_once: list[int] = []
    running: set[int] = set()

    def slow(request: Message) -> Message:
        assert isinstance(request, pb.RerankRequest)
        running.add(threading.get_ident())
        at_once.append(len(running))
        # The later queries are answered first.
        time.sleep(0.02 if int(request.query) % 2 else 0.001)
        running.discard(threading.get_ident())
        return pb.RerankResponse(results=[pb.Result(id=request.query)])

    taken: list[int] = []
    queries = ((str(number), ["text"]) for number in range(60) if taken.append(number) is None)  # type: ignore[func-returns-value]
    with Client(transport=MockTransport(slow)) as client:
        rankings = client.rank_all(queries, top_n=1)
        assert next(rankings).results[0].id == "0"
        assert len(taken) <= CALLS_IN_FLIGHT + 2
        assert [each.results[0].id for each in rankings] == [str(number) for number in range(1, 60)]
    assert 1 < max(at_once) <= CALLS_IN_FLIGHT


def test_a_query_that_fails_fails_at_its_place() -> None:
    def answer(request: Message) -> Message:
        assert isinstance(request, pb.RerankRequest)
        if not request.query:
            raise InvalidArgument("query: is empty")
        return pb.RerankResponse()

    with Client(transport=MockTransport(answer)) as client:
        rankings = client.rank_all([("one", ["x"]), ("", ["x"]), ("two", ["x"])])
        next(rankings)
        with pytest.raises(InvalidArgument):
            next(rankings)


async def test_the_asyncio_client_keeps_their_order_too() -> None:
    def answer(request: Message) -> Message:
        assert isinstance(request, pb.RerankRequest)
        if not request.query:
            raise InvalidArgument("query: is empty")
        return pb.RerankResponse(results=[pb.Result(id=request.query)])

    queries = [(str(number), ["text"]) for number in range(3 * CALLS_IN_FLIGHT)]
    async with AsyncClient(transport=MockTransport(answer)) as client:
        found = [ranking.results[0].id async for ranking in client.rank_all(queries)]
        assert found == [query for query, _ in queries]
        with pytest.raises(InvalidArgument):
            await anext(client.rank_all([("", ["x"]), *queries]))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [([3.0, 1.0, 1.0], [3.0, 1.0, 1.0]), ([3.0, 1.0, 2.0], [3.0, 2.0, 1.0]), ([], []), ([-2.5], [-2.5])],
)
def test_scores_for_a_run_sort_as_the_results_are_ranked(scores: list[float], expected: list[float]) -> None:
    answer = pb.RerankResponse(results=[pb.Result(score=each) for each in scores])
    assert Ranking.from_pb(answer).run_scores() == expected
