"""PARADE's light forms compared with their formulas, computed one number at a time."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_rankers.chunking import Chunking
from farrank_rankers.errors import SpecError
from farrank_rankers.family import EvidenceKind, ParadeAttnOptions
from farrank_rankers.features import Features
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

SaveAndOpen = Callable[[Ranker, str, Sequence[str]], Ranker]
Vector = list[float]
QUERY = "neural query"
DOCUMENTS = [
    "a search engine ranks passages of the long document by a query, while windows slide over text and "
    "chunks of command line arguments parse hello world; tokens score its model, unlike documents elsewhere",
    "hello world",
    "",
    "windows slide over the long text and its passages: hello search engine, hello model, hello score",
]
CHUNKING = Chunking("sliding", 16, 10, 44)
FORMS = ["parade-avg", "parade-max", "parade-attn", "parade-attn per dimension"]


def made(form: str, folder: Path, **changes: Any) -> Ranker:
    family, *rest = form.split(" ", 1)
    options = ParadeAttnOptions(per_dimension=True) if rest else None
    ranker = new_ranker(family, folder, CHUNKING, seed=5, max_query_tokens=8, options=options, **changes)
    with torch.no_grad():
        for weight in ranker.aggregator.parameters():
            weight.copy_(torch.linspace(-1, 1.5, weight.numel()).sin().reshape(weight.shape) / 3)
    return ranker.eval()


def linear(weight: list[Vector], bias: Vector, vector: Vector) -> Vector:
    return [
        sum(w * x for w, x in zip(row, vector, strict=True)) + b for row, b in zip(weight, bias, strict=True)
    ]


def softmax(logits: Vector) -> Vector:
    exponentials = [math.exp(logit - max(logits)) for logit in logits]
    return [value / sum(exponentials) for value in exponentials]


def by_hand(form: str, state: dict[str, Any], vectors: list[Vector]) -> tuple[float, list[float]]:
    """Return the score of a document, and for the attention form its chunks' weights."""
    weights: list[float] = []
    if form == "parade-avg":
        joined = [sum(values) / len(vectors) for values in zip(*vectors, strict=True)]
    elif form == "parade-max":
        joined = [max(values) for values in zip(*vectors, strict=True)]
    else:
        logits = [linear(state["attention.weight"], state["attention.bias"], vector) for vector in vectors]
        if form == "parade-attn":
            weights = softmax([logit for (logit,) in logits])
            joined = [
                sum(w * x for w, x in zip(weights, values, strict=True))
                for values in zip(*vectors, strict=True)
            ]
        else:
            each = [softmax(list(of_one)) for of_one in zip(*logits, strict=True)]  # by dimension, then chunk
            joined = [
                sum(w * x for w, x in zip(own, values, strict=True))
                for own, values in zip(each, zip(*vectors, strict=True), strict=True)
            ]
            weights = [sum(of_chunk) / len(of_chunk) for of_chunk in zip(*each, strict=True)]
    return linear(state["head.linear.weight"], state["head.linear.bias"], joined)[0], weights


@pytest.mark.parametrize("pad_query_to", [None, 12])
@pytest.mark.parametrize("form", FORMS)
def test_scores_follow_the_formula(
    cross_encoder: Path, literally: Callable[[Path], Any], form: str, pad_query_to: int | None
) -> None:
    ranker = made(form, cross_encoder, pad_query_to=pad_query_to)
    state = {name: weight.tolist() for name, weight in ranker.aggregator.state_dict().items()}
    backbone = literally(cross_encoder)
    query = backbone.tokens(QUERY)
    numbers = []
    for document, found in zip(DOCUMENTS, ranker.score(QUERY, DOCUMENTS), strict=True):
        chunks = backbone.sliding(document, 16, 10, 44)
        vectors = [backbone.pair(query, chunk, pad_query_to or 0)[0] for chunk in chunks]
        expected, weights = by_hand(form, state, vectors)
        if form == "parade-avg":
            evidence = [by_hand(form, state, [vector])[0] for vector in vectors]
        elif form == "parade-max" and len(vectors) == 1:
            evidence = [0.0]
        elif form == "parade-max":
            evidence = [
                expected - by_hand(form, state, vectors[:left_out] + vectors[left_out + 1 :])[0]
                for left_out in range(len(vectors))
            ]
        else:
            evidence = weights
        assert found.score == pytest.approx(expected, rel=0, abs=1e-5)
        assert list(found.chunk_scores) == pytest.approx(evidence, rel=0, abs=1e-5)
        assert found.deciding == max(range(len(evidence)), key=lambda chunk: found.chunk_scores[chunk])
        numbers.append(len(chunks))
    assert numbers == [4, 1, 1, 2]


@pytest.mark.parametrize("form", FORMS)
def test_masked_values_are_never_looked_at(cross_encoder: Path, form: str) -> None:
    aggregator = made(form, cross_encoder).aggregator
    vectors = torch.randn(2, 3, 32)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    garbage = vectors.clone()
    garbage[1, 1], garbage[1, 2] = torch.nan, torch.inf
    clean, dirty = (aggregator.explain(Features(each), mask) for each in (vectors, garbage))
    assert torch.equal(dirty.scores, clean.scores)
    assert torch.equal(dirty.chunk_scores, clean.chunk_scores)
    assert torch.isfinite(dirty.scores).all()
    assert dirty.chunk_scores[1, 1:].tolist() == [-torch.inf, -torch.inf]
    alone = aggregator.explain(Features(vectors[1:, :1]), mask[1:, :1])
    torch.testing.assert_close(clean.scores[1:], alone.scores, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="document 0 has no chunk"):
        aggregator(Features(vectors), torch.zeros(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_reach_every_weight_under_garbage(cross_encoder: Path, form: str) -> None:
    ranker = made(form, cross_encoder).train()
    ids = torch.randint(5, 100, (6, 12))
    vectors = ranker.encoder(ids, torch.ones_like(ids), torch.zeros_like(ids)).vectors.unflatten(0, (2, 3))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    vectors = torch.where(mask[:, :, None], vectors, torch.nan)
    ranker.aggregator(Features(vectors), mask).sum().backward()
    for name, weight in ranker.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
    reached = {
        name for name, weight in ranker.named_parameters() if weight.grad is not None and weight.grad.any()
    }
    assert "encoder.backbone.encoder.layer.0.attention.self.query.weight" in reached
    assert "aggregator.head.linear.weight" in reached
    assert ("aggregator.attention.weight" in reached) == form.startswith("parade-attn")


@pytest.mark.parametrize("form", FORMS)
def test_an_artifact_gives_the_same_scores_to_the_bit(
    cross_encoder: Path, save_and_open: SaveAndOpen, form: str
) -> None:
    ranker = made(form, cross_encoder)
    save_and_open(ranker, QUERY, DOCUMENTS)


def test_evidence_says_what_it_is(cross_encoder: Path) -> None:
    kinds = [made(form, cross_encoder).aggregator.evidence for form in FORMS]
    attention = EvidenceKind.ATTENTION
    assert kinds == [EvidenceKind.CHUNK_SCORE, EvidenceKind.LEAVE_ONE_OUT, attention, attention]


def test_per_dimension_is_yes_or_no() -> None:
    with pytest.raises(SpecError, match="per_dimension is 1; it must be true or false"):
        ParadeAttnOptions(per_dimension=1)  # type: ignore[arg-type]
