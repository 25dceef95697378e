"""What an efficiency test leaves in its folder."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context

from farrank_loadtest.efficiency.points import Point
from farrank_loadtest.efficiency.report.chart import efficiency_chart
from farrank_loadtest.efficiency.report.rows import as_csv
from farrank_loadtest.efficiency.report.table import render
from farrank_loadtest.efficiency.result import FILE, Conditions, Results, check_same
from farrank_loadtest.errors import LoadtestError

TABLE = "efficiency.md"
CSV = "efficiency.csv"
PNG = "efficiency.png"
SVG = "efficiency.svg"


def open_folder(folder: Path, conditions: Conditions, command: str, *, resume: bool) -> Results:
    """Make the folder before anything is measured; give what it holds already, to go on from.

    Raises: LoadtestError if it cannot be written to, holds results and nothing was said of resuming, or holds
    those of other conditions; InputError if its file is something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = (folder / FILE).exists()
    except OSError as error:
        raise LoadtestError(f"{error.filename or folder}: {error.strerror}") from error
    if not held:
        results = Results(conditions, command, {})
        results.write(folder)
        return results
    if not resume:
        raise LoadtestError(
            f"{folder}: holds {FILE} already; --resume goes on from it, or name another folder"
        )
    results = Results.read(folder)
    check_same(folder, results.conditions, conditions)
    return results


def write_report(folder: Path, results: Results, points: Sequence[Point]) -> str:
    """Write plot, CSV and table, and give the table; nothing is written of no point.

    Raises: LoadtestError if a file cannot be written.
    """
    if not points:
        return ""
    table = render(results, points)
    try:
        (folder / TABLE).write_text(table, encoding="utf-8")
        (folder / CSV).write_text(as_csv(points), encoding="utf-8")
        figure = efficiency_chart(results.conditions, points)
        figure.savefig(folder / PNG)
        # The same points give the same file: ids are not drawn by lot, no date is noted.
        with rc_context({"svg.hashsalt": FILE}):
            figure.savefig(folder / SVG, metadata={"Date": None})
    except OSError as error:
        raise LoadtestError(f"{error.filename or folder}: {error.strerror}") from error
    return table
