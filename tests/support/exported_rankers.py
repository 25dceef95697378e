"""Texts to measure exports with, and a ranker with its traced graphs."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farrank_exporters.texts import Texts
from farrank_rankers.exports.export_folder import find_exports
from farrank_rankers.exports.manifest import Graph
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker

# What features may be: vectors and tokens, encoded with the query and apart from it.
KINDS = ("maxp", "biencoder", "parade-transf-pretr-q", "parade-transf-pretr-lateir")

TEXT = (
    "neural search engines rank passages of long documents by a query while windows slide over the text and "
    "chunks of arguments parse tokens that score a model unlike documents elsewhere on the command line"
)
WORDS = TEXT.split()


def text(words: int, start: int) -> str:
    return " ".join(WORDS[(start + step * (1 + start % 3)) % len(WORDS)] for step in range(words))


MEASURED = Texts(
    queries=("neural query of a document", "windows slide"),
    documents=tuple(text(3 + 23 * index, index) for index in range(12)),
)
CALIBRATION = Texts(
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
        """Do what tracing the ranker into the folder would do, which takes seconds."""
        for graph in self.folder.glob("*.onnx"):
            shutil.copy(graph, folder)
        return dict(self.graphs)
