"""Rankers traced and exported once for all tests of this room: tracing takes seconds even of tiny ones."""

import shutil
from pathlib import Path

import pytest

from farrank_exporters.trace import trace_encoder
from farrank_rankers.exports.export_folder import Export
from farrank_rankers.files.open import open_ranker
from support.exported_rankers import CALIBRATION, MEASURED, TracedRanker


@pytest.fixture(scope="session")
def traced_rankers(
    tiny_exports: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TracedRanker]:
    """Rankers of each kind of features, traced in fp32; "maxp-fp16" is the first in fp16."""
    made = {name: TracedRanker.of(artifact) for name, artifact in tiny_exports.items()}
    full, folder = made["maxp"], tmp_path_factory.mktemp("maxp-fp16")
    shutil.copy(full.folder / "aggregator.onnx", folder)  # it is in fp32 always
    graphs = {
        "encoder": trace_encoder(full.ranker, folder, half=True),
        "aggregator": full.graphs["aggregator"],
    }
    made["maxp-fp16"] = TracedRanker(full.ranker, folder, graphs)
    return made


@pytest.fixture(scope="session")
def exported(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A bi-encoder in fp32, in an artifact of its own."""
    from farrank_exporters.export import export_ranker

    artifact = tmp_path_factory.mktemp("exported") / "ranker"
    shutil.copytree(tiny_rankers["biencoder"], artifact)
    ranker = open_ranker(artifact)
    return export_ranker(ranker, artifact, "onnx", "fp32", measured=MEASURED, calibration=CALIBRATION)
