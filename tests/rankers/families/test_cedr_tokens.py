"""Properties of every family that compares tokens: masks, companions, gradients, artifacts."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from farrank_rankers.chunking import Chunking
from farrank_rankers.features import Features
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import Role

MakeModel = Callable[..., Path]
SaveAndOpen = Callable[[Ranker, str, Sequence[str]], Ranker]

FAMILIES = ["cedr-knrm", "cedr-pacrr", "cedr-drmm", "neural-model1"]
WORDS = st.sampled_from(["search", "engine", "hello", "world", "café", "😀", "window", "passage."])
DOCUMENT = st.lists(WORDS, max_size=40).map(" ".join)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=[("bert", None), ("bert", 12), ("roberta", None)], ids=str)
def ranker(request: pytest.FixtureRequest, make_model: MakeModel, family: str) -> Ranker:
    model_type, pad_query_to = request.param
    chunking = Chunking("disjoint", 12, 12, 40)
    return new_ranker(
        family,
        make_model(model_type),
        chunking,
        seed=1,
        max_query_tokens=8,
        pad_query_to=pad_query_to,
    ).eval()


def rounding_stays_small(ranker: Ranker, query: str, documents: list[str]) -> bool:
    """Return whether no cosine is at the edge of a bin (DRMM) or on the slope of the sharp kernel (KNRM)."""
    if not ranker.spec.family.startswith("cedr"):
        return True
    reader = ranker.reader
    read = reader.read_query(query)
    for document in documents:
        chunks = reader.split(reader.read_document(document))
        with torch.inference_mode():
            vectors, roles, _ = ranker.encoder(
                *ranker.tensors([reader.chunk_input(read, chunk) for chunk in chunks])
            )
        unit = torch.nn.functional.normalize(vectors.double(), dim=-1)
        queries, tokens = unit[0][roles[0] == Role.QUERY], unit[roles == Role.DOCUMENT]
        cosines = torch.einsum("qlh,tlh->lqt", queries, tokens)
        bins = (cosines + 1.000001) * 5
        if ((bins - bins.round()).abs() < 1e-5).any() or (cosines > 0.99).any():
            return False
    return True


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    query=st.lists(WORDS, min_size=1, max_size=4).map(" ".join),
    documents=st.lists(DOCUMENT, min_size=1, max_size=5),
    batch_size=st.integers(1, 7),
)
def test_scores_stand_alone(ranker: Ranker, query: str, documents: list[str], batch_size: int) -> None:
    assume(rounding_stays_small(ranker, query, documents))
    together = ranker.score(query, documents, batch_size)
    for document, found in zip(documents, together, strict=True):
        alone = ranker.score(query, [document], batch_size=1)[0]
        assert np.isfinite(found.score)
        assert found.score == pytest.approx(alone.score, rel=1e-5, abs=1e-5)
        assert list(found.chunk_scores) == pytest.approx(list(alone.chunk_scores), rel=1e-4, abs=1e-4)


@st.composite
def token_roles(draw: st.DrawFn) -> list[list[list[int]]]:
    """Draw roles of some documents' chunks: each has the query, padded or not, and any number of tokens."""
    documents = []
    for _ in range(draw(st.integers(1, 3))):
        query = [1] + [2] * draw(st.integers(1, 8)) + [0] * draw(st.integers(0, 2)) + [1]
        lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
        documents.append([query + [3] * length + [1] for length in lengths])
    return documents


def filled(ranker: Ranker, documents: list[list[list[int]]], chunks: int, tokens: int) -> Features:
    """Draw random vectors at the given roles, and NaN everywhere else."""
    width = (3, 32) if ranker.spec.family.startswith("cedr") else (128,)
    roles = torch.zeros(len(documents), chunks, tokens, dtype=torch.long)
    vectors = torch.full((len(documents), chunks, tokens, *width), torch.nan)
    for row, document in enumerate(documents):
        for column, chunk in enumerate(document):
            there = torch.tensor(chunk)
            roles[row, column, : len(chunk)] = there
            vectors[row, column, : len(chunk)] = torch.where(
                (there != Role.PADDING).view(-1, *[1] * len(width)),
                torch.randn(len(chunk), *width),
                torch.nan,
            )
    return Features(vectors, roles)


@settings(deadline=None, max_examples=25)
@given(documents=token_roles(), more=st.integers(0, 3))
def test_documents_do_not_see_each_other_nor_padding(
    ranker: Ranker, documents: list[list[list[int]]], more: int
) -> None:
    chunks = max(map(len, documents))
    tokens = max(len(chunk) for document in documents for chunk in document)
    features = filled(ranker, documents, chunks + more, tokens + more)
    assert features.roles is not None
    mask = torch.arange(chunks + more) < torch.tensor([[len(document)] for document in documents])
    # Without a chunk, roles have no meaning, either.
    features.roles[~mask] = Role.DOCUMENT
    with torch.inference_mode():
        together = ranker.aggregator.explain(features, mask)
        assert not together.chunk_scores.isnan().any()
        assert ((together.chunk_scores == -torch.inf) == ~mask).all()
        for row, document in enumerate(documents):
            count = len(document)
            longest = max(map(len, document))
            one = Features(
                features.vectors[row : row + 1, :count, :longest],
                features.roles[row : row + 1, :count, :longest],
            )
            alone = ranker.aggregator.explain(one, mask[row : row + 1, :count])
            assert alone.scores.isfinite().all()
            torch.testing.assert_close(together.scores[row], alone.scores[0], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(
                together.chunk_scores[row, :count], alone.chunk_scores[0], rtol=1e-5, atol=1e-4
            )


@settings(deadline=None, max_examples=15)
@given(documents=token_roles())
def test_gradients_are_finite_whatever_lies_under_masks(
    ranker: Ranker, documents: list[list[list[int]]]
) -> None:
    chunks = max(map(len, documents))
    features = filled(ranker, documents, chunks, max(len(chunk) for each in documents for chunk in each))
    mask = torch.arange(chunks) < torch.tensor([[len(document)] for document in documents])
    features.vectors.requires_grad_(True)
    result = ranker.aggregator.explain(features, mask)
    assert not result.chunk_scores.requires_grad
    ranker.zero_grad()
    torch.autograd.backward(result.scores.sum())
    gradients = [features.vectors.grad, *(weight.grad for weight in ranker.aggregator.parameters())]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def test_gradients_reach_backbone_aggregator_and_head(family: str, cross_encoder: Path) -> None:
    ranker = new_ranker(family, cross_encoder, Chunking("disjoint", 8, 8, 40), max_query_tokens=4).eval()
    if family == "cedr-drmm":  # no hidden unit at 0, where gradients vanish
        torch.nn.init.constant_(dict(ranker.named_parameters())["aggregator.hidden.bias"], 50.0)
    ids = torch.randint(5, 100, (6, 12))
    roles = torch.tensor([[1, 2, 2, 2, 1, 3, 3, 3, 3, 3, 3, 1]] * 6)
    features = ranker.encoder(ids, roles, torch.zeros_like(ids))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    grouped = Features(features.vectors.reshape(2, 3, *features.vectors.shape[1:]), roles.reshape(2, 3, -1))
    ranker.aggregator(grouped, mask).sum().backward()
    weights = dict(ranker.named_parameters())
    assert [name for name, weight in weights.items() if weight.grad is None] == []
    reached = {name for name, weight in weights.items() if weight.grad is not None and weight.grad.any()}
    # A bias of keys adds the same to all arguments of a softmax.
    assert {name for name in weights if name not in reached} <= {
        name for name in weights if name.endswith("key.bias")
    }


def test_queries_of_all_lengths_and_empty_documents(ranker: Ranker) -> None:
    documents = ["", "hello", "search engine " * 40]
    one, forty, hundred = (
        [found.score for found in ranker.score(" ".join(["hello"] * words), documents)]
        for words in (1, 40, 100)
    )
    assert forty == hundred  # both are cut to max_query_tokens
    assert np.isfinite([*one, *forty]).all()
    if ranker.spec.family != "cedr-drmm":  # whose five hidden units may all be at 0
        assert len({*one, *forty}) == 6


def test_a_document_without_chunks_is_refused(ranker: Ranker) -> None:
    features = filled(ranker, [[[1, 2, 1, 3, 1]]] * 2, 1, 5)
    with pytest.raises(ValueError, match="chunk_mask: document 1 has no chunk"):
        ranker.aggregator(features, torch.tensor([[True], [False]]))


def test_features_without_roles_are_refused(ranker: Ranker) -> None:
    features = filled(ranker, [[[1, 2, 1, 3, 1]]], 1, 5)
    with pytest.raises(ValueError, match="features have no roles"):
        ranker.aggregator(Features(features.vectors), torch.ones(1, 1, dtype=torch.bool))


def test_an_artifact_scores_the_same_to_the_bit(ranker: Ranker, save_and_open: SaveAndOpen) -> None:
    save_and_open(ranker, "hello world", ["", "hello", "search engine passage. " * 20])
