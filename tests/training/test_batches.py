"""A training batch has the served ranker's scores, whatever the plan."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_rankers.chunking import Chunking
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_training.batches import Collator, TrainingBatch
from farrank_training.errors import TrainingError
from farrank_training.training_set import Group

CHUNKING = {
    "sliding": Chunking("sliding", 16, 10, 64),
    "disjoint": Chunking("disjoint", 16, 16, 64),
}
GROUPS = (
    Group(
        "q1",
        "neural search engine",
        ("a search engine ranks passages of the long document by a query " * 3, "hello world"),
    ),
    Group("q2", "the query", ("", "neural models score the tokens of a passage " * 6)),
)


def make(family: str, backbone: Path, options: Any = None) -> Ranker:
    chunking = CHUNKING[FAMILIES[family].chunking]
    made = new_ranker(
        family, backbone, chunking, seed=3, pretrained=False, options=options, max_query_tokens=16
    )
    return made.eval()


@pytest.fixture(
    scope="module", params=["maxp", "parade-attn", "cedr-knrm", "biencoder", "parade-transf-pretr-lateir"]
)
def ranker(
    request: pytest.FixtureRequest, tiny_backbone: Path, tiny_options: dict[str, dict[str, Any]]
) -> Ranker:
    return make(request.param, tiny_backbone, tiny_options.get(request.param))


def scored(ranker: Ranker, batch: TrainingBatch) -> list[float]:
    with torch.inference_mode():
        scores: list[float] = ranker(batch["batch"], batch["counts"], batch["query"]).tolist()
    return scores


def test_a_batch_scores_as_the_ranker_that_is_served(ranker: Ranker) -> None:
    expected = [[found.score for found in ranker.score(group.query, group.documents)] for group in GROUPS]
    collator = Collator(ranker.reader)
    together = collator(GROUPS)
    assert together["sizes"] == [2, 2]
    assert together["teacher"] is None
    assert scored(ranker, together) == pytest.approx(expected[0] + expected[1], rel=1e-4, abs=1e-4)
    for group, scores in zip(GROUPS, expected, strict=True):
        assert scored(ranker, collator([group])) == pytest.approx(scores, rel=1e-4, abs=1e-4)


def test_a_query_is_read_apart_where_the_family_does(ranker: Ranker) -> None:
    collator = Collator(ranker.reader)
    queries = [collator(groups)["query"] for groups in (GROUPS, GROUPS[:1])]
    if ranker.spec.plan == "pair":
        assert queries == [None, None]
    else:
        assert [len(query[0]) for query in queries if query] == [4, 1]


def test_max_chunks_keeps_the_first_ones(ranker: Ranker) -> None:
    whole, some = Collator(ranker.reader)(GROUPS), Collator(ranker.reader, max_chunks=2)(GROUPS)
    assert max(whole["counts"]) > 2
    assert some["counts"] == [min(count, 2) for count in whole["counts"]]
    assert len(some["batch"][0]) == sum(some["counts"])


def test_a_collator_travels_to_another_process(ranker: Ranker) -> None:
    collator = Collator(ranker.reader, max_chunks=3)
    sent, here = pickle.loads(pickle.dumps(collator))(GROUPS), collator(GROUPS)
    assert sent["counts"] == here["counts"]
    assert all(map(torch.equal, sent["batch"], here["batch"]))


@pytest.fixture(scope="module")
def collator(tiny_backbone: Path) -> Collator:
    return Collator(make("maxp", tiny_backbone).reader)


def test_a_teachers_scores_stand_by_group(collator: Collator) -> None:
    groups = [Group("q", "a query", ("one", "two", "three"), (each, 0.5, -1.0)) for each in (3.0, 2.0)]
    teacher = collator(groups)["teacher"]
    assert teacher is not None
    assert teacher.dtype == torch.float32
    assert teacher.tolist() == [[3.0, 0.5, -1.0], [2.0, 0.5, -1.0]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([Group("q7", "\x07", ("a", "b"))], "query 'q7' holds no token; it needs at least 1"),
        ([Group("q", "a", ("a", "b")), Group("q", "a", ("a",))], "groups of 1 and 2 documents in one batch"),
        (
            [Group("q", "a", ("a", "b"), (1.0, 0.0)), Group("q", "a", ("a", "b"))],
            "every document of a batch needs a teacher's score, or none may have one",
        ),
        (
            [Group("q", "a", ("a", "b"), (1.0,))],
            "every document of a batch needs a teacher's score, or none may have one",
        ),
    ],
)
def test_groups_that_make_no_batch(collator: Collator, groups: list[Group], message: str) -> None:
    with pytest.raises(TrainingError) as caught:
        collator(groups)
    assert str(caught.value) == message


def test_max_chunks_must_be_positive(collator: Collator) -> None:
    with pytest.raises(TrainingError, match="max_chunks is 0; it must be at least 1"):
        Collator(collator.reader, 0)
