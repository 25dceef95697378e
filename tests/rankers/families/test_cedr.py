"""CEDR's rankers compared with their formulas, computed token by token in double precision."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from farrank_rankers.chunking import Chunking
from farrank_rankers.families.classes import aggregator_class
from farrank_rankers.family import EvidenceKind, family_named
from farrank_rankers.features import Features
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.spec import RankerSpec

Floats = NDArray[np.float64]
Weights = Mapping[str, Floats]

MAX_QUERY_TOKENS = 6
QUERIES = ["neural query", "search engine ranks the long document by its model and score"]
LONG = (
    "a search engine ranks passages of the long document by a query, while windows slide over text and "
    "chunks of command line arguments parse hello world; tokens score its model, unlike documents elsewhere"
)
DOCUMENTS = [LONG, "hello world, a neural query scores text by its model and long windows over", "a", ""]


def cosine(first: Floats, second: Floats) -> float:
    norms = (np.sqrt((first**2).sum()) + 1e-9) * (np.sqrt((second**2).sum()) + 1e-9)
    return float((first * second).sum() / norms)


def cosines(query: Floats, document: Sequence[Floats], layers: int) -> Floats:
    """(L+1, Q, T)."""
    found = np.zeros((layers, len(query), len(document)))
    for layer in range(layers):
        for row, q in enumerate(query):
            for column, d in enumerate(document):
                found[layer, row, column] = cosine(q[layer], d[layer])
    return found


def knrm(weights: Weights, similarity: Floats, cls: Floats) -> float:
    features = []
    for mu, sigma in zip(weights["mu"], weights["sigma"], strict=True):
        for layer in similarity:
            total = 0.0
            for row in layer:
                soft_count = sum(np.exp(-((s - mu) ** 2) / (2 * sigma**2)) for s in row)
                total += np.log(soft_count + 1e-6)
            features.append(total)
    vector = np.concatenate([features, cls])
    return float(weights["combine.weight"][0] @ vector + weights["combine.bias"][0])


def drmm(weights: Weights, similarity: Floats, cls: Floats) -> float:
    layers, queries, _ = similarity.shape
    score = 0.0
    for q in range(queries):
        features = []
        for number in range(11):
            for layer in range(layers):
                bins = [int(np.floor((s + 1.000001) / 2 * 10)) for s in similarity[layer, q]]
                features.append(np.log(bins.count(number) + 1e-5))
        vector = np.concatenate([features, cls])
        hidden = np.maximum(0, weights["hidden.weight"] @ vector + weights["hidden.bias"])
        score += float(weights["output.weight"][0] @ hidden + weights["output.bias"][0])
    return score


def pacrr(weights: Weights, similarity: Floats, cls: Floats) -> float:
    layers, queries, tokens = similarity.shape
    features: list[float] = []
    for q in range(MAX_QUERY_TOKENS):
        for size in (1, 2, 3):
            kernel, bias = (weights[f"ngrams.{size - 1}.convolution.{name}"] for name in ("weight", "bias"))
            strengths = []
            for t in range(tokens):
                patch = np.zeros((layers, size, size))
                for down in range(size):
                    for right in range(size):
                        if q + down < queries and t + right < tokens:
                            patch[:, down, right] = similarity[:, q + down, t + right]
                responses = [max(0.0, (k * patch).sum() + b) for k, b in zip(kernel, bias, strict=True)]
                strengths.append(max(responses))
            features += [*sorted(strengths, reverse=True), 0.0, 0.0][:2]
    vector = np.concatenate([features, cls])
    for number in (0, 2):
        vector = np.maximum(0, weights[f"dense.{number}.weight"] @ vector + weights[f"dense.{number}.bias"])
    return float(weights["dense.4.weight"][0] @ vector + weights["dense.4.bias"][0])


FORMULAS: Mapping[str, Callable[[Weights, Floats, Floats], float]] = {
    "cedr-knrm": knrm,
    "cedr-drmm": drmm,
    "cedr-pacrr": pacrr,
}


def literal_score(ranker: Ranker, query: Floats, chunks: Sequence[Any]) -> tuple[float, float]:
    """Return the score, and its change under the cosines' rounding to single precision.

    The kernel of width 0.001 multiplies an error by thousands, and at a bin's edge a score jumps.
    """
    weights = {name: weight.double().numpy() for name, weight in ranker.aggregator.state_dict().items()}
    document = [token for chunk in chunks for token in chunk.document]
    cls = np.mean([chunk.cls[-1] for chunk in chunks], axis=0)
    similarity = cosines(query, document, query.shape[1])
    score, below, above = (
        FORMULAS[ranker.spec.family](weights, similarity + error, cls) for error in (0.0, -3e-7, 3e-7)
    )
    return score, max(abs(below - score), abs(above - score))


@pytest.mark.parametrize("family", FORMULAS)
@pytest.mark.parametrize("document", DOCUMENTS, ids=["long", "short", "token", "empty"])
@pytest.mark.parametrize("query", QUERIES, ids=["short", "cut"])
@pytest.mark.parametrize(("window", "pad_query_to"), [(16, None), (16, 8), (1, None)])
def test_scores_and_evidence_follow_the_formula(
    cross_encoder: Path,
    read_document: Any,
    family: str,
    document: str,
    query: str,
    window: int,
    pad_query_to: int | None,
) -> None:
    """With windows of one token every n-gram crosses chunks, and leaving out a chunk joins its neighbours."""
    most = 44 if window > 1 else 7
    ranker = new_ranker(
        family,
        cross_encoder,
        Chunking("disjoint", window, window, most),
        seed=5,
        max_query_tokens=MAX_QUERY_TOKENS,
        pad_query_to=pad_query_to,
    )
    chunks = read_document(cross_encoder, query, document, window, most, pad_query_to or 0, MAX_QUERY_TOKENS)
    query_vectors = chunks[0].query
    expected, doubt = literal_score(ranker, query_vectors, chunks)
    effects = [0.0] * len(chunks)
    doubts = [doubt]
    if len(chunks) > 1:
        for left_out in range(len(chunks)):
            others = [chunk for number, chunk in enumerate(chunks) if number != left_out]
            score, doubt_without = literal_score(ranker, query_vectors, others)
            effects[left_out] = expected - score
            doubts.append(doubt_without)

    found = ranker.score(query, [document])[0]
    assert len(found.chunks) == len(chunks)
    assert found.score == pytest.approx(expected, rel=1e-6, abs=1e-5 + doubt)
    assert list(found.chunk_scores) == pytest.approx(effects, rel=1e-6, abs=2e-5 + doubt + max(doubts))
    assert found.deciding == int(np.argmax(found.chunk_scores))
    assert ranker.aggregator.evidence is EvidenceKind.LEAVE_ONE_OUT


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # DeBERTa, when imported
@pytest.mark.parametrize("family", FORMULAS)
@pytest.mark.parametrize("architecture", ["roberta", "electra", "distilbert", "deberta-v2"])
def test_hidden_states_are_those_of_the_embeddings_and_all_layers(
    make_model: Callable[..., Path], family: str, architecture: str
) -> None:
    ranker = new_ranker(family, make_model(architecture)).eval()
    ids = torch.randint(5, 90, (2, 9))
    roles = torch.tensor([[1, 2, 2, 1, 3, 3, 3, 3, 1], [1, 2, 1, 3, 3, 1, 0, 0, 0]])
    with torch.inference_mode():
        features = ranker.encoder(ids, roles, torch.zeros_like(ids))
        last = ranker.encoder.run(ids, roles, torch.zeros_like(ids)).last_hidden_state
    assert features.vectors.shape == (2, 9, 3, 32)
    assert torch.equal(features.roles, roles)
    torch.testing.assert_close(features.vectors[:, :, -1], last)
    assert np.isfinite(ranker.score("search engine", [LONG])[0].score)


def test_the_kernels_are_trained(cross_encoder: Path) -> None:
    ranker = new_ranker("cedr-knrm", cross_encoder)
    mu, sigma = (dict(ranker.aggregator.named_parameters())[name] for name in ("mu", "sigma"))
    assert mu.tolist() == pytest.approx([-0.9, -0.7, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
    assert sigma.tolist() == pytest.approx([0.1] * 10 + [0.001])
    vectors, roles = torch.randn(1, 2, 8, 3, 32), torch.tensor([[[1, 2, 2, 1, 3, 3, 3, 1]] * 2])
    vectors[:, :, 4] = vectors[:, :1, 1] + 0.05  # near a query token: within reach of the sharpest kernel
    mask = torch.ones(1, 2, dtype=torch.bool)
    ranker.aggregator(Features(vectors, roles), mask).sum().backward()
    assert mu.grad is not None
    assert sigma.grad is not None
    assert (mu.grad != 0).all()
    assert (sigma.grad != 0).all()


def test_counts_pass_no_gradient(cross_encoder: Path) -> None:
    ranker = new_ranker("cedr-drmm", cross_encoder)
    documents = 64  # enough that some hidden unit is above 0
    vectors = torch.randn(documents, 2, 8, 3, 32, requires_grad=True)
    roles = torch.tensor([[[1, 2, 2, 1, 3, 3, 3, 1]] * 2] * documents)
    mask = torch.ones(documents, 2, dtype=torch.bool)
    ranker.aggregator(Features(vectors, roles), mask).sum().backward()
    assert vectors.grad is not None
    assert vectors.grad[:, :, 0, -1].any()
    assert not vectors.grad[:, :, 1:].any()
    assert not vectors.grad[:, :, 0, :-1].any()


def test_equal_vectors_fall_into_the_last_bin(cross_encoder: Path) -> None:
    """Rounding of their cosine has no effect: doubling a vector must not move it into another bin."""
    ranker = new_ranker("cedr-drmm", cross_encoder).eval()
    roles = torch.tensor([[[1, 2, 1, 3, 3, 1]]])
    vectors = torch.randn(64, 1, 6, 3, 32)
    vectors[:, :, 3] = vectors[:, :, 1]
    scaled = vectors.clone()
    scaled[:, :, 3] *= 3
    mask = torch.ones(64, 1, dtype=torch.bool)
    every = roles.expand(64, 1, 6)
    first, second = (ranker.aggregator(Features(each, every), mask) for each in (vectors, scaled))
    assert torch.equal(first, second)


def test_a_query_longer_than_the_spec_allows_is_refused(cross_encoder: Path) -> None:
    ranker = new_ranker("cedr-pacrr", cross_encoder, max_query_tokens=2)
    roles = torch.tensor([[[1, 2, 2, 2, 1, 3, 1]]])
    features = Features(torch.randn(1, 1, 7, 3, 32), roles)
    with pytest.raises(ValueError, match="features hold 3 query tokens; max_query_tokens is 2"):
        ranker.aggregator(features, torch.ones(1, 1, dtype=torch.bool))


@pytest.mark.parametrize(
    ("family", "beyond_backbone"),
    [
        ("cedr-knrm", 22 + 11 * 13 + 768 + 1),
        ("cedr-drmm", (11 * 13 + 768 + 1) * 5 + 6),
        ("cedr-pacrr", 13 * 32 * 14 + 96 + (192 + 768 + 1) * 32 + 33 * 32 + 33),
    ],
)
def test_parameters_at_full_size(family: str, beyond_backbone: int) -> None:
    spec = RankerSpec(family, "bert-base-uncased", Chunking("disjoint", 477, 477, 1431))
    with torch.device("meta"):
        aggregator = aggregator_class(family_named(family))(spec, {"model_type": "bert"})
    assert sum(weight.numel() for weight in aggregator.parameters()) == beyond_backbone
