"""Reproduce the tables: quality, latency and size of rankers over real collections.

python -m farrank_bench.reproduce --out .cache/reproduce --data ../shared/data

A cell is a collection × first stage × ranker × depth × runtime. The folder keeps the judgements and each
cell's run and figures; the same command goes on with the cells that are missing. `--score` makes the table
again from the kept files, without inference.
"""

import argparse
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from farrank_bench.report import INTERRUPTED
from farrank_bench.reproduce.cells import CELLS, Kept
from farrank_bench.reproduce.corpora import DataAbsent, read_corpus
from farrank_bench.reproduce.measuring import measure
from farrank_bench.reproduce.table import page
from farrank_trec.errors import InputError

PROGRAM = "farrank_bench.reproduce"
PAGE = "reproduce.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the missing cells, print the page and write it.

    Returns 0; 1 if a cell failed, whose error the page has; 2 if a kept file is of other settings or cannot
    be read; 130 after Ctrl-C, with the finished cells.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs, figures and the page")
    parser.add_argument("--data", type=Path, help="folder with squad/, trecdl19/ and nfcorpus/")
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each cell (%(default)s)")
    parser.add_argument("--questions", type=int, help="of each collection, for a trial (all)")
    parser.add_argument("--score", action="store_true", help="measure nothing: score the kept runs again")
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = parser.parse_args(words)
    for name in ("rounds", "questions"):
        value = getattr(given, name)
        if value is not None and value < 1:
            parser.error(f"argument --{name}: must be at least 1, not {value}")
    kept = Kept(given.out)
    failures: list[str] = []
    interrupted = False
    try:
        try:
            if not given.score:
                _measure(given, kept, failures)
        except KeyboardInterrupt:
            interrupted = True
        written = page(kept, shlex.join(["python", "-m", PROGRAM, *words]), failures)
    except InputError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    print(written)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / PAGE).write_text(written, encoding="utf-8")
    return INTERRUPTED if interrupted else 1 if failures else 0


def _measure(given: argparse.Namespace, kept: Kept, failures: list[str]) -> None:
    """Measure the cells that are missing; add a line to `failures` for each that cannot be measured.

    Raises: InputError if a kept file is of other settings or questions.
    """
    for name in given.cells:
        cell = CELLS[name]
        if kept.is_finished(cell):
            print(f"{name}: finished before", flush=True)
            continue
        try:
            corpus = read_corpus(cell.corpus, given.data, kept.folder)
            if given.questions is not None:
                corpus = corpus.first(given.questions)
            figures = measure(cell, corpus, kept, given.rounds)
            print(f"{name}: {figures.seconds:.0f} s", flush=True)
        except InputError:
            raise
        except DataAbsent as error:
            failures.append(f"{name} is not measured: {error}.")
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            failures.append(f"{name} is not measured: {type(error).__name__}: {error}.")


if __name__ == "__main__":
    sys.exit(main())
