"""Validation: the queries whose candidates are reranked, their scores, and errors before the start."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.validation import ValidationSet, read_validation_set, rerank
from farrank_trec import rank
from support.training_groups import MakeRanker, Texts, validation

QUERIES = "q1\tneural engine\nq2\thello\nq3\tquery\nq4\twithout judgement\n"
QRELS = "q1 0 a 1\nq2 0 b 1\nq3 0 c 1\nq9 0 a 1\n"
RUN = "q1 Q0 a 1 3 t\nq1 Q0 b 2 2 t\nq1 Q0 gone 3 1 t\nq2 Q0 b 1 1 t\nq4 Q0 a 1 1 t\n"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    contents = {
        "queries": QUERIES,
        "qrels": QRELS,
        "candidates": RUN,
        "docs": "".join(json.dumps({"id": each, "text": f"engine {each}"}) + "\n" for each in "abc"),
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    return {name: tmp_path / name for name in contents}


def opened(files: dict[str, Path], **options: Any) -> ValidationSet:
    collection = [files["docs"]]
    return read_validation_set(files["queries"], files["qrels"], files["candidates"], collection, **options)


def test_judged_queries_and_their_first_candidates(files: dict[str, Path]) -> None:
    found = opened(files, depth=2)
    assert found.candidates == {"q1": ["a", "b"], "q2": ["b"]}
    # A judged query without candidates counts as 0; one that is not among the queries does not count.
    assert found.qrels.keys() == {"q1", "q2", "q3"}
    run = {"q1": rank("q1", [("a", 1.0), ("b", 2.0)]), "q2": rank("q2", [("b", 1.0)])}
    assert found.measure(run, ["RR", "AP"]) == pytest.approx({"RR": 0.5, "AP": 0.5})


def test_a_candidate_without_a_text_is_reported(files: dict[str, Path]) -> None:
    with pytest.raises(TrainingError) as caught:
        opened(files)
    assert str(caught.value) == "1 of 3 candidate documents are not in the collection: gone"


def test_nothing_to_measure_is_reported(files: dict[str, Path]) -> None:
    files["qrels"].write_text("q4x 0 a 1\n")
    with pytest.raises(TrainingError, match="no validation query has both judgements and candidates"):
        opened(files, depth=2)


def test_some_of_the_queries(files: dict[str, Path]) -> None:
    found = opened(files, depth=2).only({"q2", "q3"})
    assert found.candidates == {"q2": ["b"]}
    assert found.qrels.keys() == {"q2", "q3"}
    with pytest.raises(TrainingError, match="no validation query"):
        found.only({"q3"})


@pytest.mark.parametrize("family", ["maxp", "cedr-knrm", "parade-transf-pretr-lateir", "biencoder"])
def test_scores_are_those_that_are_served(make_ranker: MakeRanker, family: str) -> None:
    ranker, dev = make_ranker(family).train(), validation(6)
    run = rerank(ranker, dev, TrainingConfig())
    assert ranker.training
    for query_id, ranked in run.items():
        texts = [dev.texts.text(each.doc_id) for each in ranked]
        expected = [each.score for each in ranker.score(dev.queries[query_id], texts)]
        assert [each.score for each in ranked] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_scores_that_are_not_finite_are_reported(make_ranker: MakeRanker) -> None:
    ranker = make_ranker("firstp")
    with torch.no_grad():
        ranker.aggregator.get_parameter("head.linear.bias").fill_(torch.nan)
    with pytest.raises(TrainingError, match="the score of document 'd3' is not a number"):
        rerank(ranker, validation(), TrainingConfig())


def test_a_document_without_a_text(make_ranker: MakeRanker) -> None:
    """An empty document is read as one empty chunk, as in a server."""
    dev = ValidationSet({"q": "hello"}, {"q": {"a": 1}}, {"q": ["a", "b"]}, Texts(a="hello", b=""))
    run = rerank(make_ranker("maxp"), dev, TrainingConfig())
    assert {each.doc_id for each in run["q"]} == {"a", "b"}
