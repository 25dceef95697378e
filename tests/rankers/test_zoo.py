"""Properties of every family, whatever its formula."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_rankers.chunking import Chunking
from farrank_rankers.family import FAMILIES, EvidenceKind
from farrank_rankers.features import Features, batched, stacked
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import collate

MakeModel = Callable[..., Path]
Options = dict[str, dict[str, Any]]
Rankers = dict[str, Ranker]

WORDS = st.sampled_from(["search", "engine", "hello", "world", "café", "😀", "window", "passage."])
DOCUMENT = st.lists(WORDS, max_size=60).map(" ".join)
TEXTS = (
    "a search engine ranks passages of the long document by a query, while windows slide over text",
    "hello world",
    "",
    "neural models score the tokens of a passage " * 6,
)
QUERY = "neural search engine"
NARROW = {
    "first": Chunking("first", 16, 16, 64),
    "disjoint": Chunking("disjoint", 16, 16, 64),
    "sliding": Chunking("sliding", 16, 10, 64),
}

# KNRM's kernel of exact matches has a width of 0.001: if a cosine's last digit changes, by 1e-7, the kernel
# changes by up to 6e-5. No order of additions in fp32 can be closer.
TOLERANCE = {name: family.rounding for name, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def narrow(make_model: MakeModel, tiny_options: Options) -> Rankers:
    """Every family on one backbone, with small windows, so that short texts have several chunks."""
    backbone = make_model("bert")
    return {
        name: new_ranker(
            name,
            backbone,
            NARROW[family.chunking],
            seed=3,
            options=tiny_options.get(name),
            max_query_tokens=16,
        ).eval()
        for name, family in FAMILIES.items()
    }


@pytest.fixture(scope="module")
def usual(make_model: MakeModel, tiny_options: Options) -> Rankers:
    """Every family with its default windows, and queries of up to 100 tokens."""
    backbone = make_model("bert", positions=1600)
    return {
        name: new_ranker(name, backbone, seed=4, options=tiny_options.get(name), max_query_tokens=100).eval()
        for name in FAMILIES
    }


def encoded(ranker: Ranker, texts: tuple[str, ...] = TEXTS) -> tuple[list[Features], Features | None]:
    """Return the features of documents, (C, …) each, and of the query, (1, …), with gradients."""
    reader = ranker.reader
    dual = ranker.spec.plan == "dual"
    read = reader.read_query(QUERY)

    def encode(inputs: list[Any]) -> Features:
        batch = collate(inputs, reader.pad_id)
        features: Features = ranker.encoder(*(torch.from_numpy(array) for array in batch))
        return features

    documents = []
    for text in texts:
        chunks = reader.split(reader.read_document(text))
        inputs = [reader.chunk_input(None if dual else read, chunk) for chunk in chunks]
        documents.append(stacked(encode(inputs).rows()))
    return documents, encode([reader.query_input(read)]) if dual else None


def repeated(query: Features | None, times: int) -> Features | None:
    return None if query is None else stacked(query.rows() * times)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_stands_alone(narrow: Rankers, family: str) -> None:
    """Companions, their order, the batch's size, and earlier calls have no effect."""
    ranker, bound = narrow[family], TOLERANCE[family]

    @settings(deadline=None, max_examples=10)
    @given(
        documents=st.lists(DOCUMENT, min_size=1, max_size=5),
        query=st.lists(WORDS, min_size=1, max_size=4).map(" ".join),
        batch_size=st.integers(1, 9),
    )
    def stands(documents: list[str], query: str, batch_size: int) -> None:
        together = ranker.score(query, documents, batch_size)
        turned = ranker.score(query, documents[::-1], batch_size)[::-1]
        for document, found, other in zip(documents, together, turned, strict=True):
            alone = ranker.score(query, [document], batch_size=1)[0]
            for each in (found, other):
                assert each.score == pytest.approx(alone.score, rel=1e-5, abs=bound)
                assert each.chunk_scores == pytest.approx(alone.chunk_scores, rel=1e-5, abs=bound)
            assert np.isfinite(alone.score)

    stands()


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_score_together_as_alone(narrow: Rankers, family: str) -> None:
    """Documents that differ in chunks and tokens are aggregated together, with garbage in the padding."""
    ranker, bound = narrow[family], TOLERANCE[family]
    with torch.inference_mode():
        documents, query = encoded(ranker)
        features, mask = batched(documents)
        vectors = torch.nn.functional.pad(features.vectors, _after(features, chunks=2, tokens=3))
        mask = torch.nn.functional.pad(mask, (0, 2))
        roles = None
        nothing = ~mask
        if features.roles is not None:
            roles = torch.nn.functional.pad(features.roles, (0, 3, 0, 2))
            nothing = roles == 0
        vectors[nothing] = torch.nan
        together = ranker.aggregator.explain(Features(vectors, roles), mask, repeated(query, len(documents)))
        for row, document in enumerate(documents):
            alone = ranker.aggregator.explain(*batched([document]), query)
            count = len(document.vectors)
            torch.testing.assert_close(together.scores[row], alone.scores[0], rtol=1e-5, atol=bound)
            torch.testing.assert_close(
                together.chunk_scores[row, :count], alone.chunk_scores[0], rtol=1e-5, atol=bound
            )
            assert (together.chunk_scores[row, count:] == -torch.inf).all()


def _after(features: Features, chunks: int, tokens: int) -> tuple[int, ...]:
    """Padding, last dimension first, for (D, C, F) or (D, C, S, F…)."""
    if features.roles is None:
        return (0, 0, 0, chunks)
    return (0, 0) * (features.vectors.ndim - 3) + (0, tokens, 0, chunks)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_no_feature(narrow: Rankers, family: str) -> None:
    ranker = narrow[family]
    reader = ranker.reader
    query = None if ranker.spec.plan == "dual" else reader.read_query(QUERY)
    item = reader.chunk_input(query, reader.split(reader.read_document(TEXTS[0]))[0])
    batch = collate([item], reader.pad_id)
    with torch.inference_mode():
        alone = ranker.encoder(*(torch.from_numpy(array) for array in batch)).rows()[0]
        for padding, noise in ((1, 0), (40, 3)):
            wide = [
                np.pad(array, ((0, 0), (0, padding)), constant_values=value)
                for array, value in zip(batch, (reader.pad_id + noise, 0, 0), strict=True)
            ]
            padded = ranker.encoder(*(torch.from_numpy(array) for array in wide)).rows()[0]
            torch.testing.assert_close(padded.vectors, alone.vectors, rtol=1e-5, atol=1e-5)
            if alone.roles is not None:
                assert torch.equal(padded.roles, alone.roles)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_all_that_is_trained(narrow: Rankers, family: str) -> None:
    ranker = narrow[family].train()
    try:
        ranker.zero_grad()
        for module in ranker.aggregator.modules():
            if isinstance(module, torch.nn.Linear) and module.bias is not None:
                torch.nn.init.constant_(module.bias, 0.5)  # no unit before a ReLU may be 0 by chance
        documents, query = encoded(ranker)
        scores = ranker.aggregator(*batched(documents), repeated(query, len(documents)))
        (scores * torch.tensor([1.0, -2.0, 3.0, -1.5])).sum().backward()
        gradients = {
            name: weight.grad
            for name, weight in ranker.named_parameters()
            if weight.requires_grad and ".pooler." not in name
        }
        assert [name for name, gradient in gradients.items() if gradient is None] == []
        reached = {name for name, gradient in gradients.items() if gradient is not None and gradient.any()}
        assert any("embeddings.word_embeddings" in name for name in reached)
        assert any("layer.0.attention" in name for name in reached)
        own = {name.split(".")[1] for name in gradients if name.startswith("aggregator.")}
        assert {name.split(".")[1] for name in reached if name.startswith("aggregator.")} == own
        assert own or family in ("cross-encoder", "yes-no", "biencoder", "maxsim")
        assert all(gradient.isfinite().all() for gradient in gradients.values() if gradient is not None)
    finally:
        ranker.zero_grad()
        ranker.eval()


@pytest.mark.parametrize("tokens", [0, 1, 476, 477, 478, 954, 1431, 5000])
@pytest.mark.parametrize("family", FAMILIES)
def test_documents_of_every_length_have_scores(usual: Rankers, family: str, tokens: int) -> None:
    ranker = usual[family]
    chunking = ranker.spec.chunking
    found = ranker.score(QUERY, ["hello " * tokens], count_tokens=True)[0]
    assert np.isfinite(found.score)
    assert np.isfinite(found.chunk_scores).all() or chunking.kind == "first"
    read = min(tokens, chunking.window if chunking.kind == "first" else chunking.max_document_tokens)
    if (most := ranker.spec.chunk_positions) is not None:
        read = min(read, chunking.window + (most - 1) * chunking.stride)
    assert found.tokens_cut == tokens - read
    expected = 1
    if chunking.kind != "first":
        expected = -(-max(0, read - chunking.window) // chunking.stride) + 1
    assert len(found.chunks) == len(found.chunk_scores) == expected
    assert found.deciding == int(np.argmax(found.chunk_scores))


@pytest.mark.parametrize("tokens", [1, 32, 100, 130])
@pytest.mark.parametrize("family", FAMILIES)
def test_queries_of_every_length_have_scores(usual: Rankers, family: str, tokens: int) -> None:
    ranker = usual[family]
    assert ranker.reader.read_query("search " * tokens).tokens_cut == max(0, tokens - 100)
    found = [each.score for each in ranker.score("search " * tokens, list(TEXTS))]
    assert np.isfinite(found).all()
    longer = [each.score for each in ranker.score("search " * (tokens + 30), list(TEXTS))]
    assert (longer == found) == (tokens >= 100)


@pytest.mark.parametrize("family", FAMILIES)
def test_evidence_is_what_its_kind_says(narrow: Rankers, family: str) -> None:
    ranker = narrow[family]
    with torch.inference_mode():
        documents, query = encoded(ranker)
        for document in documents:
            features, mask = batched([document])
            whole = ranker.aggregator.explain(features, mask, query)
            evidence = whole.chunk_scores[0]
            if ranker.aggregator.evidence is EvidenceKind.ATTENTION:
                assert float(evidence.sum()) == pytest.approx(1.0, abs=1e-5)
            elif ranker.aggregator.evidence is EvidenceKind.CHUNK_SCORE:
                for chunk in range(1 if ranker.spec.chunking.kind == "first" else mask.shape[1]):
                    alone = ranker.aggregator.explain(_only(features, [chunk]), mask[:, :1], query)
                    assert float(evidence[chunk]) == pytest.approx(float(alone.scores[0]), abs=1e-5)
            elif mask.shape[1] == 1:
                assert evidence.tolist() == [0.0]
            elif ranker.spec.chunk_positions is None:
                # Chunks with positions keep them, as the tests of those families' formulas show. The first
                # chunk also has the query's vectors, which stay, so this test leaves it out.
                for chunk in range(1, mask.shape[1]):
                    others = [other for other in range(mask.shape[1]) if other != chunk]
                    without = ranker.aggregator.explain(_only(features, others), mask[:, 1:], query)
                    effect = float(whole.scores[0] - without.scores[0])
                    assert float(evidence[chunk]) == pytest.approx(effect, abs=2 * TOLERANCE[family])


def _only(features: Features, chunks: list[int]) -> Features:
    roles = features.roles
    return Features(features.vectors[:, chunks], None if roles is None else roles[:, chunks])
