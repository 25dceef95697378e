"""A training batch has the served ranker's scores, whatever the plan."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking, adjusted
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_training.batches import Collator, TrainingBatch, competing_documents, placed_reader
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.groups import Group

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


def test_queries_that_meet_all_documents_are_read_once(tiny_backbone: Path) -> None:
    collator = Collator(make("biencoder", tiny_backbone).reader, crossed=True)
    batch = collator(GROUPS)
    assert batch["query"] is not None
    assert [len(each) for each in batch["query"]] == [2, 2, 2]
    assert batch["competing"] is not None
    assert batch["competing"].all()
    assert Collator(collator.reader)(GROUPS)["competing"] is None


def test_a_group_that_does_not_count_is_left_out_of_a_batch_with_others(tiny_backbone: Path) -> None:
    collator = Collator(make("biencoder", tiny_backbone).reader, crossed=True)
    filling = replace(GROUPS[1], counted=False)
    batch, alone = collator([GROUPS[0], filling, filling]), collator([filling, filling])
    assert (batch["counted"], batch["sizes"]) == (1, [2])
    assert (alone["counted"], alone["sizes"]) == (0, [2])


def test_a_known_relevant_document_does_not_compete() -> None:
    groups = [
        Group("1", "one", ("a", "x"), keys=(1, 9), relevant=frozenset({1, 2})),
        Group("2", "two", ("b", "y"), keys=(2, 8), relevant=frozenset({2})),
        Group("3", "three", ("c", "a"), keys=(3, 7), relevant=frozenset({3})),  # the text a has another key
        Group("4", "two", ("d", "b"), keys=(4, 2), relevant=frozenset({4})),
    ]
    competing = competing_documents(groups).tolist()
    keys = [key for group in groups for key in group.keys]
    left_out = [{key for key, counts in zip(keys, row, strict=True) if not counts} for row in competing]
    # Queries 2 and 4 are the same; a group's own documents always compete.
    assert left_out == [{2, 7}, {2, 4}, set(), {2}]
    assert competing[1][2]
    assert competing[1][7] is False
    assert competing[3][7]


def test_groups_in_memory_are_known_by_their_texts() -> None:
    groups = [Group(word, word, (word, "another"), relevant=frozenset({word, "z"})) for word in ("a", "z")]
    assert competing_documents(groups).tolist() == [[True, True, False, True], [True, True, True, True]]


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


@pytest.mark.parametrize("family", ["maxp", "cedr-knrm", "longp", "parade-transf-rand"])
def test_a_ranker_without_a_limit_is_trained_within_the_papers(
    family: str, tiny_backbone: Path, tiny_options: dict[str, dict[str, Any]]
) -> None:
    ranker = new_ranker(
        family, tiny_backbone, pretrained=False, options=tiny_options.get(family), max_query_tokens=16
    )
    assert ranker.spec.chunking.max_document_tokens == WHOLE_DOCUMENT
    group = Group("q1", "the query", ("neural " * 3000, "hello"))

    def chunks(reader: Reader, max_chunks: int | None = None, tokens: int | None = None) -> int:
        return Collator(reader, max_chunks, tokens)([group])["counts"][0]

    window, stride = ranker.spec.chunking.window, ranker.spec.chunking.stride
    papers = 1 if family == "longp" else -(-max(0, 1431 - window) // stride) + 1
    assert chunks(ranker.reader) == papers
    assert chunks(ranker.reader, 1) == 1
    assert chunks(ranker.reader, None, 2800) == (
        1 if family == "longp" else -(-(2800 - window) // stride) + 1
    )
    limited = new_ranker(
        family, tiny_backbone, pretrained=False, options=tiny_options.get(family), max_document_tokens=window
    )
    assert chunks(limited.reader, None, 2800) == 1


def test_a_transformer_over_chunks_reads_no_more_than_it_was_trained_with(tiny_backbone: Path) -> None:
    reader = new_ranker("parade-transf-rand", tiny_backbone, pretrained=False).reader
    assert reader.spec.most_chunks() == 509
    placed = placed_reader(reader, TrainingConfig())
    assert placed.spec.chunking.max_document_tokens == WHOLE_DOCUMENT
    assert placed.spec.most_chunks() == 14
    assert (
        placed_reader(placed, TrainingConfig(max_chunks=3)).spec.most_chunks() == 14
    )  # it knows more already
    assert placed_reader(reader, TrainingConfig(max_chunks=3)).spec.most_chunks() == 3
    assert placed_reader(reader, TrainingConfig(document_tokens=350)).spec.most_chunks() == 3


@pytest.mark.parametrize("limit", [64, WHOLE_DOCUMENT])
def test_a_transformer_over_chunks_learns_from_fewer_than_its_limit_holds(
    tiny_backbone: Path, tiny_options: dict[str, dict[str, Any]], limit: int
) -> None:
    family = "parade-transf-rand"
    reader = make(family, tiny_backbone, tiny_options.get(family)).reader
    spec = replace(reader.spec, chunking=adjusted(reader.spec.chunking, max_document_tokens=limit))
    placed = placed_reader(Reader(spec, reader.tokenizer, reader.backbone), TrainingConfig(max_chunks=2))
    assert placed.spec.most_chunks() == 2
    assert max(Collator(placed, max_chunks=2)(GROUPS)["counts"]) == 2
