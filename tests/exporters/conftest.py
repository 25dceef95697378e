"""Rankers traced and exported once for all tests of this room: tracing takes seconds even of tiny ones."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from farrank_exporters.texts import Texts
from farrank_exporters.trace import Traced, trace_ranker
from farrank_rankers.exports.export_folder import Export
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker

# What features may be: vectors and tokens, encoded with the query and apart from it.
KINDS = ("maxp", "cedr-knrm", "biencoder", "parade-transf-pretr-lateir")

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
    traced: Traced


@pytest.fixture(scope="session")
def traced_rankers(
    tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TracedRanker]:
    """Rankers of each kind of features, traced in fp32; "maxp-fp16" is the first in fp16."""
    made = {}
    for name in (*KINDS, "maxp-fp16"):
        ranker = open_ranker(tiny_rankers[name.removesuffix("-fp16")])
        folder = tmp_path_factory.mktemp(name)
        made[name] = TracedRanker(ranker, folder, trace_ranker(ranker, folder, half=name.endswith("-fp16")))
    return made


@pytest.fixture(scope="session")
def exported(tiny_rankers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A bi-encoder in fp32, in an artifact of its own."""
    from farrank_exporters.export import export_ranker

    artifact = tmp_path_factory.mktemp("exported") / "ranker"
    shutil.copytree(tiny_rankers["biencoder"], artifact)
    ranker = open_ranker(artifact)
    return export_ranker(ranker, artifact, "onnx", "fp32", measured=MEASURED, calibration=CALIBRATION)
