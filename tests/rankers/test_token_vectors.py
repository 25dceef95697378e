"""Token vectors of a document have the places of their tokens in its text."""

from pathlib import Path

import numpy as np
import pytest
import torch

from farrank_rankers.features import Features, stacked
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_rankers.token_vectors import compared_places, document_vectors, query_vectors
from farrank_rankers.tokens import EncoderInput
from support.multi_vector_models import save_backbone, save_stanford


def encoded(ranker: Ranker, item: EncoderInput) -> Features:
    with torch.inference_mode():
        features: Features = ranker.eval().encoder(*ranker.tensors([item]))
    return features.rows()[0]


def test_each_vector_has_its_characters(tmp_path: Path) -> None:
    saved = save_stanford(save_backbone(tmp_path / "base"), tmp_path / "saved", doc_maxlen=6, query_maxlen=9)
    ranker = open_ranker(saved)
    reader, text = ranker.reader, "hello, world: windows slide (over) text."
    document = reader.read_document(text)
    chunks = reader.split(document)
    features = stacked([encoded(ranker, reader.chunk_input(None, chunk)) for chunk in chunks])
    found = document_vectors(features, reader, document)
    spans = found.spans(document)
    words = [text[start:end] for start, end in spans.tolist() if start >= 0]
    assert words == ["hello", "world", "windows", "slide", "over", "text"]
    # [CLS], the marker and [SEP] of each window are compared, too; of 11 tokens, 5 are skipped.
    assert len(chunks) == 4
    assert len(found.vectors) == len(spans) == 6 + 3 * 4
    assert found.window_ends.tolist() == [5, 10, 14, 18]
    assert found.vectors.shape[1] == 16
    assert compared_places(reader, document).tolist() == found.places.tolist()
    query = reader.read_query("hello world")
    asked = query_vectors(encoded(ranker, reader.query_input(query)))
    assert asked.places.tolist() == [-1, -1, 0, 1, -1, -1, -1, -1, -1]
    (read,) = ranker.score("hello world", [text])
    products = asked.vectors @ found.vectors.T
    assert float(products.max(axis=1).sum()) == pytest.approx(read.score, abs=1e-5)
    own = np.maximum.reduceat(products, [0, *found.window_ends[:-1]], axis=1).sum(axis=0)
    assert own.tolist() == pytest.approx(list(read.chunk_scores), abs=1e-5)


def test_more_windows_than_the_document_has_are_refused(tmp_path: Path) -> None:
    ranker = open_ranker(save_stanford(save_backbone(tmp_path / "base"), tmp_path / "saved"))
    document = ranker.reader.read_document("hello")
    features = Features(torch.zeros(2, 3, 16), torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="features have 2 windows; the document has 1"):
        document_vectors(features, ranker.reader, document)
