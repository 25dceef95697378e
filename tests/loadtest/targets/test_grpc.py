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


def results(*rounds: int) -> list[pb.Result]:
    """Return a ranking of c, a, b, whose scores alone would sort it as b, a, c."""
    return [
        pb.Result(id=name, index=index, score=score, round=round_, first_stage_score=score)
        for name, index, score, round_ in zip("cab", (2, 0, 1), (1.0, 2.0, 3.0), rounds, strict=True)
    ]


@pytest.mark.parametrize(
    ("rounds", "of_abc"),
    [((1, 1, 1), (2.0, 3.0, 1.0)), ((3, 2, 1), (2.0, 1.0, 3.0)), ((0, 0, 0), (2.0, 3.0, 1.0))],
)
async def test_scores_of_several_rounds_sort_as_the_server_ranks(
    scripted: ScriptedServer, rounds: tuple[int, ...], of_abc: tuple[float, ...]
) -> None:
    scripted.results = results(*rounds)
    target = FarrankTarget(scripted.target)
    answer = await target.rerank("q", DOCUMENTS, timeout_s=60)
    assert answer.scores == of_abc
    found = await target.search("q", index="", k=None, ranker="", timeout_s=60)
    assert {each.id: each.score for each in found} == dict(zip("abc", of_abc, strict=True))
    assert [each.first_stage_score for each in found] == [1.0, 2.0, 3.0]
    await target.close()
