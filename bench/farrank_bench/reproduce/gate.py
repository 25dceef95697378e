"""The quality gate: a small part of the demo is ranked again, and its quality must not fall.

python -m farrank_bench.reproduce.gate --reason "The window of embedded:maxp is 256 now"

The command ranks the part and writes its quality to expected.json, with the reason and the date.
"""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from farrank_bench.reproduce.cells import Cell, Kept, Way
from farrank_bench.reproduce.corpora import DEMO, read_corpus
from farrank_bench.reproduce.measuring import measure
from farrank_loadtest.kept_files import read_kept
from farrank_trec import read_run
from farrank_trec.measures import evaluate, parse_measures

EXPECTED = Path(__file__).with_name("expected.json")
MEASURE = "nDCG@10"
MOST_LOST = 0.002
# The demo's first questions.
QUESTIONS = 20
# In fp32: bf16 rounds differently on other processors. Texts are read at each call, so few tokens are.
WAYS = (
    Way("lucene"),
    Way(
        "maxp-first",
        "embedded:maxp",
        "first chunk",
        10,
        runtime="torch",
        first_tokens=128,
        precision="fp32",
    ),
    Way("embedded-first", "embedded", "first chunk", 10, runtime="torch", first_tokens=200, precision="fp32"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """Qualities that count from a date on, by way, and the reason. `python` rendered the documents."""

    date: str
    reason: str
    python: str
    quality: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected qualities; of each minor version of Python the last change counts.

    The documents are Python's own documentation, which differs between its minor versions.
    """

    changes: tuple[Change, ...]

    def newest(self, python: str = platform.python_version()) -> Change | None:
        """The last change of this minor version, if it has one."""
        same = (each for each in reversed(self.changes) if _minor(each.python) == _minor(python))
        return next(same, None)

    def changed(self, reason: str, quality: Mapping[str, float]) -> "Expected":
        """Expect other qualities from now on.

        Raises: ValueError if the reason is blank.
        """
        if not reason.strip():
            raise ValueError("reason: must not be blank; it says why the expected quality changes")
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        rounded = {name: round(value, 6) for name, value in quality.items()}
        change = Change(date, " ".join(reason.split()), platform.python_version(), rounded)
        return Expected((*self.changes, change))

    def write(self, path: Path) -> None:
        """Write all changes."""
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")


def _minor(python: str) -> str:
    return python.rpartition(".")[0]


def read_expected(path: Path) -> Expected:
    """Read a file of `Expected.write`.

    Raises: InputError if it is something else.
    """
    return read_kept(path, Expected, "python -m farrank_bench.reproduce.gate")


def fallen(expected: Mapping[str, float], found: Mapping[str, float]) -> list[str]:
    """Name each way whose quality is lower by more than MOST_LOST, or that was not measured."""
    lines = []
    for name, value in expected.items():
        if name not in found:
            lines.append(f"{name}: {MEASURE} of {value:.4f} is expected, and it was not measured")
        elif found[name] < value - MOST_LOST:
            lines.append(
                f"{name}: {MEASURE} is {found[name]:.4f}, and {value:.4f} is expected; at most "
                f"{MOST_LOST:g} may be lost"
            )
    return lines


def measured(folder: Path) -> dict[str, float]:
    """Rank the part with each of WAYS by real servers, and give its quality.

    Raises: as `measuring.measure`.
    """
    kept = Kept(folder)
    corpus = read_corpus(DEMO, None, folder).first(QUESTIONS)
    found = {}
    for way in WAYS:
        cell = Cell(DEMO, way)
        measure(cell, corpus, kept, rounds=0)
        values = evaluate(corpus.judged.qrels, read_run(kept.run(cell)), parse_measures([MEASURE]))
        found[way.name] = fmean(values[MEASURE].values())
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the quality of now as the expected one."""
    parser = argparse.ArgumentParser(prog="python -m farrank_bench.reproduce.gate", description=__doc__)
    parser.add_argument("--reason", required=True, help="why the expected quality changes; kept in the file")
    parser.add_argument("--file", type=Path, default=EXPECTED, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if not given.reason.strip():
        parser.error("argument --reason: must not be blank; it says why the expected quality changes")
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder))
    before = read_expected(given.file) if given.file.exists() else Expected(())
    newest = before.newest()
    for line in fallen(newest.quality, found) if newest else ():
        print(line)
    before.changed(given.reason, found).write(given.file)
    print(f"{given.file}: {', '.join(f'{name} {value:.4f}' for name, value in found.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
