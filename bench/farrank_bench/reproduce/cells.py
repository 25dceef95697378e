"""The matrix: collection × first stage × ranker × depth × runtime, and the kept figures of a cell."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from farrank_bench.reproduce.corpora import BIASED, CORPORA, DEMO, FAR, NFCORPUS, SQUAD
from farrank_loadtest.kept_files import read_kept
from farrank_trec.errors import InputError

CALLERS = (1, 16)
# The name of the server's index.
INDEX = "docs"
# The peers: other programs that rank the same candidates with the same weights.
BI_ENCODER, CROSS_ENCODER, PYLATE, INFINITY = "sentence-transformers", "CrossEncoder", "PyLate", "Infinity"
# An emulation of Elasticsearch's chunk rescoring: the chunk of a document that BM25 finds best is scored.
BEST_CHUNK = "Elasticsearch's chunk rescoring, emulated"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to rank the first stage's `candidates`; with an empty `ranker` their order stays.

    `depth` is "all", "adaptive", "first chunk", of `first_tokens` tokens, or a peer's own. `first_stage` is
    "BM25", "dense" or "hybrid". `runtime` is "torch", or "export" for `--export auto`. `stored` are the flags
    with which the index keeps the ranker's vectors. An empty `precision` leaves it to the server. `peer` is
    one of those above; an empty one is Farrank. `timed` is the number of questions of 16 callers' rounds,
    which a way without any does not have.
    """

    name: str
    ranker: str = ""
    depth: str = ""
    candidates: int = 100
    first_stage: str = "BM25"
    runtime: str = ""
    stored: tuple[str, ...] = ()
    first_tokens: int = 0
    precision: str = ""
    peer: str = ""
    timed: int = 32

    def server_flags(self, index: Path | None) -> list[str]:
        """The flags of the server for its only ranker and its only index. No cache helps later rounds."""
        flags = ["--ranker", f"it={self.ranker}", "--set=cache_bytes=0"]
        flags += ["--export=auto"] if self.runtime == "export" else [f"--runtime={self.runtime}"]
        if self.first_tokens:
            flags.append(f"--set=rankers.it.max_document_tokens={self.first_tokens}")
        if self.precision:
            flags.append(f"--precision={self.precision}")
        return flags if index is None else flags + self._index_flags(index)

    def _index_flags(self, index: Path) -> list[str]:
        if self.first_stage == "BM25":
            return ["--index", f"{INDEX}={index}"]
        dense = INDEX if self.first_stage == "dense" else "dense"
        keys = {f"{dense}.kind": "dense", f"{dense}.path": index, f"{dense}.encoder": "it"}
        if self.first_stage == "dense":
            return [f"--set=first_stage.indexes.{key}={value}" for key, value in keys.items()]
        keys |= {f"{INDEX}.kind": "fusion", f"{INDEX}.of": "bm25,dense"}
        sets = [f"--set=first_stage.indexes.{key}={value}" for key, value in keys.items()]
        return ["--index", f"bm25={index}", *sets]


_EMBEDDED, _MAXSIM = ("--encode", "embedded"), ("--encode", "embedded:maxsim")
# A cross-encoder reads at each call, so it gets fewer candidates, and fewer questions are timed.
_reading = partial(Way, candidates=10, timed=16)
# Each collection has these. The first is the baseline of the others.
WAYS = (
    Way("lucene"),
    Way("embedded", "embedded", "all", runtime="torch", stored=_EMBEDDED),
    Way("maxsim", "embedded:maxsim", "all", runtime="torch", stored=_MAXSIM),
    _reading("maxp-adaptive", "embedded:maxp", "adaptive", runtime="torch"),
    # Its chunks have 128 tokens.
    _reading("maxp-first", "embedded:maxp", "first chunk", runtime="torch", first_tokens=128),
    _reading("st-cross-encoder", "embedded:maxp", "512 tokens", peer=CROSS_ENCODER),
)
# Some have more: what matters to long documents only, and one axis at a time on a collection or two.
_BEST_CHUNK = _reading("es-best-chunk", "embedded:maxp", "BM25's best chunk", peer=BEST_CHUNK)
# Sixteen callers would wait for minutes.
_ALL = _reading("maxp-all", "embedded:maxp", "all", runtime="torch", timed=0)
_BI_ENCODER = Way("st-bi-encoder", "embedded", "256 tokens", peer=BI_ENCODER)
_PYLATE = Way("pylate", "embedded:maxsim", "300 tokens", peer=PYLATE)
_INFINITY = Way("infinity", "embedded", "256 tokens", peer=INFINITY)
_OF_LONG = (_BI_ENCODER, _PYLATE, _BEST_CHUNK)
_FIRST_STAGES = (
    Way("dense", "embedded", "all", first_stage="dense", runtime="torch", stored=_EMBEDDED),
    Way("hybrid", "embedded", "all", first_stage="hybrid", runtime="torch", stored=_EMBEDDED),
)
_EXPORTS = (
    Way("embedded-export", "embedded", "all", runtime="export", stored=_EMBEDDED),
    _reading("maxp-adaptive-export", "embedded:maxp", "adaptive", runtime="export"),
)
MORE: Mapping[str, tuple[Way, ...]] = {
    DEMO: (*_OF_LONG, _INFINITY, *_FIRST_STAGES, *_EXPORTS),
    SQUAD: (*_OF_LONG, _INFINITY, *_EXPORTS),
    FAR: (*_OF_LONG, _ALL),
    BIASED: _OF_LONG,
    NFCORPUS: _FIRST_STAGES,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A way to rank a collection's documents."""

    corpus: str
    way: Way

    @property
    def name(self) -> str:
        """The name on the command line and of the kept files."""
        return f"{self.corpus}.{self.way.name}"


CELLS: Mapping[str, Cell] = {
    cell.name: cell
    for cell in (Cell(corpus, way) for corpus in CORPORA for way in (*WAYS, *MORE.get(corpus, ())))
}


@dataclass(frozen=True, slots=True)
class Figures:
    """A finished cell, except its run.

    `p50_ms` has the median of each round by number of callers, `p99_ms` the 99th percentile over all rounds,
    `calls` the number of timed calls. Without an index or vectors `bytes_a_document` and `index_s` are None.
    `seconds` is the cell's own time, with its index if this cell made it.
    """

    cell: Cell
    questions: int
    rounds: int
    calls: Mapping[str, int]
    p50_ms: Mapping[str, tuple[float, ...]]
    p99_ms: Mapping[str, float]
    bytes_a_document: float | None
    index_s: float | None
    seconds: float
    runs_on: str
    date: str
    machine: str
    versions: str

    def write(self, path: Path) -> None:
        """Write them whole, so that a file means a finished cell."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", "utf-8")
        unfinished.replace(path)


def read_figures(path: Path) -> Figures:
    """Read a file of `Figures.write`. Raises: InputError."""
    return read_kept(path, Figures, "python -m farrank_bench.reproduce")


@dataclass(frozen=True, slots=True)
class Kept:
    """The folder of the results: `cells`, `runs`, `judgements` and `indexes`."""

    folder: Path

    def figures(self, cell: Cell) -> Path:
        """The file of a cell's figures."""
        return self.folder / "cells" / f"{cell.name}.json"

    @property
    def runs(self) -> Path:
        """The folder of the cells' runs."""
        return self.folder / "runs"

    def run(self, cell: Cell) -> Path:
        """The TREC run of a cell."""
        return self.runs / f"{cell.name}.trec"

    def judgements(self, corpus: str) -> Path:
        """The judgements of a collection."""
        return self.folder / "judgements" / f"{corpus}.txt"

    def is_finished(self, cell: Cell) -> bool:
        """Whether the cell has been measured.

        Raises: InputError if its kept figures are of another definition of the cell.
        """
        path = self.figures(cell)
        if not path.exists():
            return False
        if read_figures(path).cell != cell:
            raise InputError(
                f"{path}: measured with other settings than {cell.name} has now; name another --out"
            )
        return True

    def finished(self) -> list[Figures]:
        """The measured cells, in the order of the matrix."""
        return [read_figures(self.figures(cell)) for cell in CELLS.values() if self.is_finished(cell)]
