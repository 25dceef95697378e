"""The matrix: collection × first stage × ranker × depth × runtime, and the kept figures of a cell.

A peer becomes a `Way` of its own, with a branch in `measuring.measure`: it ranks the same candidates.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farrank_bench.reproduce.corpora import CORPORA
from farrank_loadtest.kept_files import read_kept
from farrank_trec.errors import InputError

CALLERS = (1, 16)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to rank the first stage's `candidates`; with an empty `ranker` their order stays.

    `depth` is "all", "adaptive" or "first chunk", of `first_tokens` tokens. `stored` are the flags with which
    the index keeps the ranker's vectors. An empty `precision` leaves it to the server.
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

    @property
    def server_flags(self) -> list[str]:
        """The flags of the server for its only ranker. No cache helps later rounds."""
        flags = ["--ranker", f"it={self.ranker}", "--runtime", self.runtime, "--set=cache_bytes=0"]
        if self.first_tokens:
            flags.append(f"--set=rankers.it.max_document_tokens={self.first_tokens}")
        if self.precision:
            flags.append(f"--precision={self.precision}")
        return flags


# The first is the baseline of the others. A cross-encoder reads at each call, so it gets fewer candidates.
WAYS = (
    Way("lucene"),
    Way("embedded", "embedded", "all", runtime="torch", stored=("--encode", "embedded")),
    Way("maxsim", "embedded:maxsim", "all", runtime="torch", stored=("--encode", "embedded:maxsim")),
    Way("maxp-adaptive", "embedded:maxp", "adaptive", 20, runtime="torch"),
    # Its chunks have 128 tokens.
    Way("maxp-first", "embedded:maxp", "first chunk", 20, runtime="torch", first_tokens=128),
)


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
    cell.name: cell for cell in (Cell(corpus, way) for corpus in CORPORA for way in WAYS)
}


@dataclass(frozen=True, slots=True)
class Figures:
    """A finished cell, except its run.

    `p50_ms` has the median of each round by number of callers, `p99_ms` the 99th percentile over all rounds,
    `calls` the number of timed calls behind each. Without an index `bytes_a_document` and `index_s` are None.
    `seconds` is the cell's own time, with its index if this cell made it.
    """

    cell: Cell
    questions: int
    rounds: int
    calls: int
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
