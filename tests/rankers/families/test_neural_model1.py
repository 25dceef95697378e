"""Neural Model 1 compared with its formula, computed token by token in double precision."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from farrank_rankers.chunking import Chunking
from farrank_rankers.family import EvidenceKind
from farrank_rankers.features import Features
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker

Floats = NDArray[np.float64]

MAX_QUERY_TOKENS = 6
QUERIES = ["neural query", "search engine ranks the long document by its model and score"]
DOCUMENTS = [
    "a search engine ranks passages of the long document by a query, while windows slide over text and "
    "chunks of command line arguments parse hello world; tokens score its model, unlike documents elsewhere",
    "hello world",
    "a",
    "",
]


def projected(weights: Mapping[str, Floats], text: str, hidden: Floats) -> Floats:
    mean = hidden.mean()
    normed = (hidden - mean) / np.sqrt(((hidden - mean) ** 2).mean() + 1e-5)
    normed = normed * weights["encoder.norm.weight"] + weights["encoder.norm.bias"]
    weight, bias = (weights[f"encoder.{text}_projection.{name}"] for name in ("weight", "bias"))
    return np.asarray(weight @ np.tanh(normed) + bias)


def translation(weights: Mapping[str, Floats], x: Floats, y: Floats) -> float:
    vector = np.concatenate([x, y, x * y])
    for layer in ("f1", "f2"):
        vector = weights[f"aggregator.{layer}.weight"] @ vector + weights[f"aggregator.{layer}.bias"]
        vector = np.maximum(0, vector)
    logit = weights["aggregator.f3.weight"][0] @ vector + weights["aggregator.f3.bias"][0]
    return float(1 / (1 + np.exp(-logit)))


def literal_score(ranker: Ranker, query: Floats, chunks: Sequence[Any]) -> float:
    weights = {
        name: weight.double().numpy()
        for name, weight in ranker.state_dict().items()
        if "backbone" not in name
    }
    document = [token for chunk in chunks for token in chunk.document]
    score = 0.0
    for q in query:
        x = projected(weights, "query", q[-1])
        each = [translation(weights, x, projected(weights, "document", d[-1])) for d in document]
        mean = sum(each) / len(each) if each else 0.0
        score += np.log(max(1e-7, mean))
    return float(score)


@pytest.mark.parametrize("document", DOCUMENTS, ids=["long", "short", "token", "empty"])
@pytest.mark.parametrize("query", QUERIES, ids=["short", "cut"])
@pytest.mark.parametrize("pad_query_to", [None, 8])
def test_scores_and_evidence_follow_the_formula(
    cross_encoder: Path, read_document: Any, document: str, query: str, pad_query_to: int | None
) -> None:
    ranker = new_ranker(
        "neural-model1",
        cross_encoder,
        Chunking("disjoint", 16, 16, 44),
        seed=5,
        max_query_tokens=MAX_QUERY_TOKENS,
        pad_query_to=pad_query_to,
    )
    chunks = read_document(cross_encoder, query, document, 16, 44, pad_query_to or 0, MAX_QUERY_TOKENS)
    query_vectors = chunks[0].query
    expected = literal_score(ranker, query_vectors, chunks)
    effects = [0.0] * len(chunks)
    if len(chunks) > 1:
        for left_out in range(len(chunks)):
            others = [chunk for number, chunk in enumerate(chunks) if number != left_out]
            effects[left_out] = expected - literal_score(ranker, query_vectors, others)

    found = ranker.score(query, [document])[0]
    assert len(found.chunks) == len(chunks)
    assert found.score == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert list(found.chunk_scores) == pytest.approx(effects, rel=1e-5, abs=1e-5)
    assert found.deciding == int(np.argmax(found.chunk_scores))
    assert ranker.aggregator.evidence is EvidenceKind.LEAVE_ONE_OUT


def test_an_unlikely_translation_counts_as_the_least(cross_encoder: Path) -> None:
    ranker = new_ranker("neural-model1", cross_encoder)
    f3 = dict(ranker.aggregator.named_modules())["f3"]
    assert isinstance(f3, torch.nn.Linear)
    torch.nn.init.constant_(f3.bias, -200.0)
    roles = torch.tensor([[[1, 2, 2, 2, 1, 3, 3, 1]]])
    features = Features(torch.randn(1, 1, 8, 128), roles)
    score = ranker.aggregator(features, torch.ones(1, 1, dtype=torch.bool))
    assert score.item() == pytest.approx(3 * np.log(1e-7))


def test_cls_and_special_tokens_take_no_part(cross_encoder: Path) -> None:
    ranker = new_ranker("neural-model1", cross_encoder).eval()
    roles = torch.tensor([[[1, 2, 2, 1, 3, 3, 1]]])
    vectors = torch.randn(1, 1, 7, 128)
    other = torch.where((roles == 1)[..., None], torch.nan, vectors)
    mask = torch.ones(1, 1, dtype=torch.bool)
    first, second = (ranker.aggregator(Features(each, roles), mask) for each in (vectors, other))
    assert torch.equal(first, second)
