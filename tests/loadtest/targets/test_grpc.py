"""Farrank's results as a load test takes them: a run that is sorted by scores has the server's order."""

from collections.abc import Iterator

import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_loadtest.targets import CandidateDocument
from farrank_loadtest.targets.grpc import FarrankTarget
from support.scripted_server import ScriptedServer, start_scripted

DOCUMENTS = [CandidateDocument(name, name) for name in "abc"]


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    server = start_scripted(scripted, None)
    yield scripted
    server.stop(0).wait()


def results(*scores: float) -> list[pb.Result]:
    """Return a ranking of c, a, b with these scores."""
    return [
        pb.Result(id=name, index=index, score=score, round=round_, first_stage_score=float(round_))
        for name, index, score, round_ in zip("cab", (2, 0, 1), scores, (3, 2, 1), strict=True)
    ]


@pytest.mark.parametrize(
    ("scores", "of_abc"),
    [
        pytest.param((0.75, 0.5, 0.25), (0.5, 0.25, 0.75), id="scores of all rounds compare"),
        pytest.param((0.75, 0.75, 0.25), (0.75, 0.25, 0.75), id="equal scores"),
        pytest.param((0.25, 0.75, 0.5), (2.0, 1.0, 3.0), id="scores of different rounds do not compare"),
    ],
)
async def test_a_run_has_the_scores_of_the_server_if_they_sort_as_it_ranks(
    scripted: ScriptedServer, scores: tuple[float, ...], of_abc: tuple[float, ...]
) -> None:
    scripted.results = results(*scores)
    target = FarrankTarget(scripted.target)
    answer = await target.rerank("q", DOCUMENTS, timeout_s=60)
    assert answer.scores == of_abc
    found = await target.search("q", index="", k=None, ranker="", timeout_s=60)
    ids = [each.id for each in found.results]
    assert dict(zip(ids, found.run_scores(), strict=True)) == dict(zip("abc", of_abc, strict=True))
    assert [each.first_stage_score for each in found.results] == [3.0, 2.0, 1.0]
    await target.close()
