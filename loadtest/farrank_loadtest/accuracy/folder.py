"""What an accuracy test leaves in its folder."""

from collections.abc import Sequence
from pathlib import Path

from farrank_loadtest.accuracy.comparison import Evaluated
from farrank_loadtest.accuracy.report import Report, write_per_query
from farrank_loadtest.accuracy.table import render
from farrank_loadtest.errors import LoadtestError

RUNS = "runs"
REPORT = "accuracy.json"
TABLE = "accuracy.md"
PER_QUERY = "per-query.csv"


def prepare_folder(folder: Path, *, for_runs: bool) -> None:
    """Make the folder before any call: hours of reranking must not end with nowhere to go.

    Raises: LoadtestError if it holds an earlier test's files, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / REPORT).exists() or any(folder.glob(f"{RUNS}/*")):
            raise LoadtestError(f"{folder}: holds an accuracy test's files already; name another folder")
        if for_runs:
            (folder / RUNS).mkdir(exist_ok=True)
    except OSError as error:
        raise LoadtestError(f"{error.filename or folder}: {error.strerror}") from error


def write_folder(folder: Path, report: Report, evaluated: Sequence[Evaluated]) -> None:
    """Write the report as JSON, its table as Markdown, and every query's values as CSV.

    Raises: LoadtestError if a file cannot be written.
    """
    try:
        report.write_json(folder / REPORT)
        (folder / TABLE).write_text(render([report]), "utf-8")
        write_per_query(folder / PER_QUERY, evaluated)
    except OSError as error:
        raise LoadtestError(f"{error.filename or folder}: {error.strerror}") from error
