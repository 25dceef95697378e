"""Texts to measure exports with, and a ranker with its traced graphs."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_exporters.export import export_ranker
from farrank_exporters.texts import SampleTexts
from farrank_exporters.trace import OPSET, trace_ranker
from farrank_rankers.exports.export_folder import (
    MANIFEST,
    checksums,
    find_exports,
    source_files,
    writing_export,
)
from farrank_rankers.exports.manifest import ExportManifest, ExportParity, Graph
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement
from support.runtime_scores import scores_through

# All kinds of features: vectors and tokens, encoded with the query and separately from it.
KINDS = ("maxp", "biencoder", "parade-transf-pretr-q", "parade-transf-pretr-lateir")

TEXT = (
    "neural search engines rank passages of long documents by a query while windows slide over the text and "
    "chunks of arguments parse tokens that score a model unlike documents elsewhere on the command line"
)
WORDS = TEXT.split()


def text(words: int, start: int) -> str:
    return " ".join(WORDS[(start + step * (1 + start % 3)) % len(WORDS)] for step in range(words))


MEASURED = SampleTexts(
    queries=("neural query of a document", "windows slide"),
    documents=tuple(text(3 + 23 * index, index) for index in range(12)),
)
CALIBRATION = SampleTexts(
    queries=("chunks of arguments", "score a model"),
    documents=tuple(text(20 + 31 * index, 5 + index) for index in range(6)),
)


@dataclass(frozen=True)
class TracedRanker:
    ranker: Ranker
    folder: Path
    graphs: Mapping[str, Graph]

    @classmethod
    def of(cls, artifact: Path) -> "TracedRanker":
        """Open an artifact that holds one export."""
        (export,) = find_exports(artifact)
        return cls(open_ranker(artifact), export.folder, export.manifest.graphs)

    def copied_to(self, folder: Path) -> dict[str, Graph]:
        """Copy traced graphs, in place of tracing the ranker into the folder, which takes seconds."""
        for graph in self.folder.glob("*.onnx"):
            shutil.copy(graph, folder)
        return dict(self.graphs)


def scores_of_fp32_exports(ranker: Ranker, artifact: Path) -> dict[str, list[float]]:
    """Save a ranker, export it in fp32, and score TEXTS through each runtime of a CPU."""
    save_ranker(ranker, artifact)
    runtimes = ("onnx", "openvino")
    export_ranker(
        open_ranker(artifact),
        artifact,
        "onnx",
        "fp32",
        measured=MEASURED,
        calibration=CALIBRATION,
        served_by=runtimes,
    )
    found = {}
    for runtime in runtimes:
        served = open_ranker_runtime(
            str(artifact), {}, placement=Placement(device="cpu", threads=1), runtime=runtime
        )
        assert served.version == ranker.version
        found[runtime] = scores_through(served.runtime, served.reader)
        served.runtime.close()
    return found


def export_into(folder: Path, rankers: Mapping[str, Path], families: Sequence[str]) -> None:
    """Copy artifacts into a folder, and trace them there."""
    for family in families:
        artifact = Path(shutil.copytree(rankers[family], folder / family))
        ranker = open_ranker(artifact)
        with writing_export(artifact, "onnx-fp32") as export:
            graphs = trace_ranker(ranker, export)
            manifest = ExportManifest(
                format="onnx",
                precision="fp32",
                stored_as="fp32",
                family=ranker.spec.family,
                evidence=ranker.aggregator.evidence,
                opset=OPSET,
                graphs=graphs,
                runtimes=("onnx", "openvino"),
                weights_digest=ranker.weights_digest,
                source_version=ranker.version,
                created_with={},
                sources=checksums(source_files(artifact)),
                checksums=checksums(export.iterdir()),
                parity=(
                    ExportParity("onnx", "cpu", "fp32", 2, 20, 3e-7, 1e-8, 0.5, 1.0, 1.0, 1.0, 1.0, "none"),
                ),
            )
            (export / MANIFEST).write_text(manifest.to_json())
