"""Bi-encoders that pool the last token, or with linear layers behind, are exported and stored like others."""

from pathlib import Path

import pytest
import torch

from farrank_exporters.export import export_ranker
from farrank_exporters.plain_graph import why_not_plain
from farrank_indexes.chunk_encoder import ChunkEncoder
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement
from support.embedding_models import SAVERS, save_gemma
from support.exported_rankers import CALIBRATION, MEASURED
from support.runtime_scores import QUERY, TEXTS, scores_through

CPU = Placement(device="cpu", threads=1)


@pytest.mark.parametrize(("kind", "cut"), [("last token", None), ("dense", 8)])
def test_an_export_has_the_scores_of_the_weights(tmp_path: Path, kind: str, cut: int | None) -> None:
    SAVERS[kind](tmp_path)
    ranker = open_ranker(tmp_path / "saved", truncate_dim=cut, window=60, stride=45)
    save_ranker(ranker, tmp_path / "artifact")
    export_ranker(
        open_ranker(tmp_path / "artifact"),
        tmp_path / "artifact",
        "onnx",
        "fp32",
        measured=MEASURED,
        calibration=CALIBRATION,
        served_by=("onnx", "openvino"),
    )
    expected = [each.score for each in ranker.score(QUERY, TEXTS)]
    for runtime in ("onnx", "openvino"):
        served = open_ranker_runtime(str(tmp_path / "artifact"), {}, placement=CPU, runtime=runtime)
        assert served.version == ranker.version
        assert scores_through(served.runtime, served.reader) == pytest.approx(expected, abs=1e-5)
        served.runtime.close()


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
