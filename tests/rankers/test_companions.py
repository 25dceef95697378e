"""Other inputs of a batch, and padding, never change an input's score."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokens import collate

MakeModel = Callable[..., Path]
WORDS = st.sampled_from(["search", "engine", "hello", "world", "café", "😀", "window", "passage."])
DOCUMENT = st.lists(WORDS, max_size=40).map(" ".join)


class Case(NamedTuple):
    model_type: str
    family: str
    pad_query_to: int | None


CASES = [
    Case("bert", "avgp", None),
    Case("bert", "maxp", 16),
    Case("roberta", "sump", 16),
    Case("roberta", "cross-encoder", None),
    Case("distilbert", "cross-encoder", 16),
    Case("bert", "biencoder", None),
    Case("roberta", "biencoder", None),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def ranker(request: pytest.FixtureRequest, make_model: MakeModel) -> Ranker:
    case: Case = request.param
    folder = make_model(case.model_type)
    return new_ranker(case.family, folder, max_query_tokens=16, pad_query_to=case.pad_query_to, seed=1).eval()


@settings(deadline=None, max_examples=15)
@given(
    query=st.lists(WORDS, min_size=1, max_size=4).map(" ".join),
    documents=st.lists(DOCUMENT, min_size=1, max_size=5),
    batch_size=st.integers(1, 7),
)
def test_scores_stand_alone(ranker: Ranker, query: str, documents: list[str], batch_size: int) -> None:
    together = ranker.score(query, documents, batch_size)
    for document, found in zip(documents, together, strict=True):
        alone = ranker.score(query, [document], batch_size=1)[0]
        assert found.score == pytest.approx(alone.score, rel=1e-5, abs=1e-5)
        assert list(found.chunk_scores) == pytest.approx(list(alone.chunk_scores), rel=1e-5, abs=1e-5)
        assert np.isfinite(found.score)


@settings(deadline=None, max_examples=15)
@given(words=st.lists(WORDS, max_size=20), padding=st.integers(1, 60), noise=st.integers(0, 3))
def test_padding_changes_no_feature(ranker: Ranker, words: list[str], padding: int, noise: int) -> None:
    reader = ranker.reader
    query = None if ranker.spec.plan == "dual" else reader.read_query("search engine")
    item = reader.chunk_input(query, reader.split(reader.read_document(" ".join(words)))[0])
    batch = collate([item], reader.pad_id)
    padding = min(padding, (reader.backbone.max_positions or 128) - item.tokens)
    wide = [
        np.pad(array, ((0, 0), (0, padding)), constant_values=value)
        for array, value in zip(batch, (reader.pad_id + noise, 0, 0), strict=True)
    ]
    with torch.inference_mode():
        alone = ranker.encoder(*(torch.from_numpy(array) for array in batch))
        padded = ranker.encoder(*(torch.from_numpy(array) for array in wide))
    torch.testing.assert_close(padded.vectors, alone.vectors, rtol=1e-5, atol=1e-5)


def test_an_empty_document_has_a_score(ranker: Ranker) -> None:
    found = ranker.score("search engine", ["", "hello"])
    assert found[0].score != found[1].score
    assert np.isfinite(found[0].score)
    assert [len(item.chunks) for item in found] == [1, 1]
    assert (found[0].chunks[0].start, found[0].chunks[0].end) == (0, 0)


def test_features_are_rows_of_one_shape(ranker: Ranker) -> None:
    ids = torch.full((3, 8), 6)
    features = ranker.encoder(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert features.vectors.shape == (3, 1 if ranker.spec.family == "cross-encoder" else 32)
