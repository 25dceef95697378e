"""Rankers traced and exported once for all tests of this folder, because tracing takes seconds."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import farrank_exporters.export
import farrank_exporters.parity
from farrank_exporters.int8 import Int8Encoders, quantize
from farrank_exporters.parity import MIN_TAU
from farrank_exporters.trace import trace_encoder
from farrank_rankers.exports.export_folder import Export
from farrank_rankers.exports.manifest import Graph
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from support.exported_rankers import CALIBRATION, MEASURED, TracedRanker


@pytest.fixture(scope="session")
def traced_rankers(
    tiny_exports: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TracedRanker]:
    """Rankers of each kind of features, traced in fp32; "maxp-fp16" is the first in fp16."""
    made = {name: TracedRanker.of(artifact) for name, artifact in tiny_exports.items()}
    full, folder = made["maxp"], tmp_path_factory.mktemp("maxp-fp16")
    shutil.copy(full.folder / "aggregator.onnx", folder)  # always in fp32
    graphs = {
        "encoder": trace_encoder(full.ranker, folder, half=True),
        "aggregator": full.graphs["aggregator"],
    }
    made["maxp-fp16"] = TracedRanker(full.ranker, folder, graphs)
    return made


@pytest.fixture(scope="session")
def exported(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A bi-encoder in fp32, in its own artifact."""
    from farrank_exporters.export import export_ranker

    artifact = tmp_path_factory.mktemp("exported") / "ranker"
    shutil.copytree(tiny_rankers["biencoder"], artifact)
    ranker = open_ranker(artifact)
    return export_ranker(ranker, artifact, "onnx", "fp32", measured=MEASURED, calibration=CALIBRATION)


@pytest.fixture
def traced_before(traced_rankers: dict[str, TracedRanker], monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy graphs that were traced for another test. The steps after tracing are what is tested."""

    def copy(ranker: Ranker, folder: Path, *, half: bool = False, progress: Any) -> dict[str, Graph]:
        return traced_rankers["maxp-fp16" if half else "maxp"].copied_to(folder)

    monkeypatch.setattr(farrank_exporters.export, "trace_ranker", copy)


@pytest.fixture(scope="session")
def quantized() -> dict[str, tuple[Path, Int8Encoders]]:
    """Graphs that were quantized before, by the runtimes."""
    return {}


@pytest.fixture
def quantized_once(
    quantized: dict[str, tuple[Path, Int8Encoders]],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Quantize the graphs, which are always the same, for the first test that asks, and copy for the others.

    Quantization always takes the same way.
    """

    def once(graphs: Any, traced: Path, folder: Path, reader: Any, texts: Any, runtimes: Any) -> Int8Encoders:
        name = "-".join(runtimes)
        if name not in quantized:
            kept = tmp_path_factory.mktemp(name)
            made = quantize(graphs, traced, folder, reader, texts, runtimes)
            for path in filter(Path.is_file, folder.iterdir()):
                shutil.copy(path, kept)
            quantized[name] = kept, made
        kept, made = quantized[name]
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        return Int8Encoders(dict(made.graphs), dict(made.quantized), {})

    monkeypatch.setattr(farrank_exporters.export, "quantize", once)


@pytest.fixture
def any_tau(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept every ranking, because a tiny untrained ranker's scores are mostly rounding."""
    monkeypatch.setattr(farrank_exporters.parity, "MIN_TAU", dict.fromkeys(MIN_TAU, -1.0))
    monkeypatch.setattr(farrank_exporters.parity, "MIN_WORST_TAU", -1.0)
