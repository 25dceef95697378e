"""Bi-encoders that pool the last token, or with linear layers behind, are exported and stored like others."""

from pathlib import Path

import pytest
import torch

from farrank_exporters.plain_graph import why_not_plain
from farrank_indexes.chunk_encoder import ChunkEncoder
from farrank_rankers.files.open import open_ranker
from support.embedding_models import SAVERS, save_gemma
from support.exported_rankers import scores_of_fp32_exports
from support.runtime_scores import QUERY, TEXTS


@pytest.mark.parametrize(("kind", "cut"), [("last token", None), ("dense", 8)])
def test_an_export_has_the_scores_of_the_weights(tmp_path: Path, kind: str, cut: int | None) -> None:
    SAVERS[kind](tmp_path)
    ranker = open_ranker(tmp_path / "saved", truncate_dim=cut, window=60, stride=45)
    expected = [each.score for each in ranker.score(QUERY, TEXTS)]
    for found in scores_of_fp32_exports(ranker, tmp_path / "artifact").values():
        assert found == pytest.approx(expected, rel=0, abs=1e-5)


def test_vectors_of_documents_can_be_stored(tmp_path: Path) -> None:
    """Each chunk's vector, of the last layer's width, under the version that serves it."""
    for kind, width in (("last token", 32), ("dense", 24)):
        folder = tmp_path / kind
        folder.mkdir()
        SAVERS[kind](folder)
        encoder = ChunkEncoder(str(folder / "saved"), precision="fp32")
        ranker = open_ranker(folder / "saved")
        assert encoder.version == ranker.encodings_version
        [stored] = encoder.encode([TEXTS[-1]])
        reader = ranker.reader
        chunks = reader.split(reader.read_document(TEXTS[-1]))
        with torch.no_grad():
            inputs = ranker.tensors([reader.chunk_input(None, chunk) for chunk in chunks])
            expected = ranker.encoder(*inputs).vectors
        assert stored.vectors.shape == (len(chunks), width)
        assert torch.from_numpy(stored.vectors).float() == pytest.approx(expected, abs=1e-3)
        encoder.close()


def test_linear_layers_have_no_plain_graph(tmp_path: Path) -> None:
    save_gemma(tmp_path)
    assert "modules of sentence-transformers" in str(why_not_plain(open_ranker(tmp_path / "saved")))
