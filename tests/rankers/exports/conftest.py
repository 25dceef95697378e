"""An artifact with an export whose graphs are arbitrary bytes: no test here runs them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from farrank_rankers.exports.export_folder import MANIFEST, Export, checksums, source_files, writing_export
from farrank_rankers.exports.manifest import ExportManifest, ExportParity, Graph
from farrank_rankers.files.open import open_ranker

GRAPHS = {
    "encoder": Graph(
        "encoder.onnx",
        ("input_ids", "roles", "token_type_ids"),
        ("vectors",),
        {"openvino": "encoder.xml"},
    ),
    "aggregator": Graph("aggregator.onnx", ("vectors", "chunk_mask"), ("scores", "chunk_scores")),
}
FILES = ("encoder.onnx", "encoder.xml", "aggregator.onnx")
PARITY = ExportParity(
    "onnx", "cpu", "fp32", 3, 30, 1e-7, 1e-8, 0.5, 1.0, 1.0, 1.0, 1.0, "max_difference <= 1e-4"
)


@pytest.fixture
def artifact(tiny_rankers: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_rankers["maxp"], tmp_path / "maxp"))


@pytest.fixture
def write_export(artifact: Path) -> Callable[..., Export]:
    """Write an export of the artifact's ranker, named by its precision."""

    def write(precision: str = "fp32", replace: bool = False) -> Export:
        ranker = open_ranker(artifact)
        with writing_export(artifact, f"onnx-{precision}", replace=replace) as folder:
            for name in FILES:
                (folder / name).write_bytes(name.encode() * 1000)
            manifest = ExportManifest(
                format="onnx",
                precision=precision,  # type: ignore[arg-type]
                stored_as="fp32",
                family=ranker.spec.family,
                evidence=ranker.aggregator.evidence,
                opset=20,
                graphs=GRAPHS,
                runtimes=("onnx", "openvino"),
                weights_digest=ranker.weights_digest,
                source_version=ranker.version,
                created_with={"torch": "2.13.0"},
                sources=checksums(source_files(artifact)),
                checksums=checksums(folder.iterdir()),
                parity=(PARITY,),
            )
            (folder / MANIFEST).write_text(manifest.to_json())
        return Export(artifact / "exports" / manifest.name, manifest)

    return write
