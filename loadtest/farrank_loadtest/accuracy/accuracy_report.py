"""What an accuracy test leaves in its folder.

A report that is read back, the papers' table, and every query's values.
"""

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from farrank_loadtest.accuracy.comparison import Cell, Evaluated, Row
from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.kept_files import read_kept, writing_to
from farrank_loadtest.markdown import markdown_table
from farrank_trec.measures import mean_name


@dataclass(frozen=True, slots=True)
class Report:
    """A test set's table and how it came about.

    `queries` counts those averaged over; `notes` are sentences a reader of the figures must know; `inputs`
    says which files and which server they came from.
    """

    test_set: str
    queries: int
    alpha: float
    measures: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    inputs: Mapping[str, Any]

    def write_json(self, path: Path) -> None:
        """Write all of it."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def read_json(cls, path: Path) -> Self:
        """Read what `write_json` wrote.

        Raises: InputError if the file is something else.
        """
        return read_kept(path, cls, "farrank loadtest accuracy", inputs=dict)


def write_per_query(path: Path, models: Sequence[Evaluated]) -> None:
    """Write a line for each model, seed and query: the values that the means and the tests came from."""
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        measures = list(models[0].seeds[0])
        writer.writerow(["model", "seed", "query_id", *measures])
        for model in models:
            for number, values in enumerate(model.seeds, start=1):
                for query in values[measures[0]]:
                    writer.writerow([model.name, number, query, *(values[each][query] for each in measures)])


T_TEST = "ᵃ"
RANDOMISATION = "ᵇ"


def render(reports: Sequence[Report]) -> str:
    """Write one table in Markdown, aligned for a terminal too: a column for each test set and measure.

    Over several columns of several test sets, the last one is the average gain, as in the papers.
    Raises: LoadtestError if two reports are of test sets of the same name, or know other models.
    """
    models = [row.model for row in reports[0].rows]
    _check_alike(reports, models)
    columns = [(report, measure) for report in reports for measure in report.measures]
    several = len(reports) > 1
    heads = ["Retriever / Ranker"]
    heads += [
        f"{each.test_set} {mean_name(measure)}" if several else mean_name(measure)
        for each, measure in columns
    ]
    heads += ["Avg. gain"] if several else []
    best = {
        (report.test_set, measure): max(_shown(row.cells[measure].mean) for row in report.rows)
        for report, measure in columns
    }
    lines = []
    for place, model in enumerate(models):
        cells = [(report, measure, report.rows[place].cells[measure]) for report, measure in columns]
        line = [model]
        line += [
            _cell(cell, report.alpha, is_best=_shown(cell.mean) == best[report.test_set, measure])
            for report, measure, cell in cells
        ]
        if several:
            gains = [cell.gain for _, _, cell in cells if cell.gain is not None]
            line.append(_percent(fmean(gains)) if len(gains) == len(cells) else "–")
        lines.append(line)
    return markdown_table(heads, lines) + "\n\n" + "\n".join(_legend(reports)) + "\n"


def _check_alike(reports: Sequence[Report], models: Sequence[str]) -> None:
    names = [report.test_set for report in reports]
    for report in reports:
        if names.count(report.test_set) > 1:
            raise LoadtestError(
                f"two reports are of a test set called {report.test_set!r} (--test-set names it)"
            )
        known = [row.model for row in report.rows]
        if known != list(models):
            raise LoadtestError(
                f"test set {report.test_set!r} has the models {', '.join(known)}; "
                f"{names[0]!r} has {', '.join(models)}: one table needs the same in the same order"
            )


def _shown(mean: float) -> str:
    return f"{mean:.3f}"


def _percent(gain: float) -> str:
    # A true minus, as in the papers: it is as wide as the plus.
    return f"{gain:+.1%}".replace("-", "−")


def _cell(cell: Cell, alpha: float, *, is_best: bool) -> str:
    marks = "".join(
        mark
        for mark, p in ((T_TEST, cell.t_test_p), (RANDOMISATION, cell.randomisation_p))
        if p is not None and p < alpha
    )
    mean = f"**{_shown(cell.mean)}**" if is_best else _shown(cell.mean)
    return mean + marks + ("" if cell.gain is None else f" ({_percent(cell.gain)})")


def _legend(reports: Sequence[Report]) -> list[str]:
    against = sorted({row.baseline for report in reports for row in report.rows if row.baseline})
    alphas = sorted({report.alpha for report in reports})
    lines = [f"{_counted(report)}." for report in reports]
    seeds = {row.model: _seeds(row) for report in reports for row in report.rows if _seeds(row) > 1}
    if seeds:
        told = ", ".join(f"{model} {count}" for model, count in seeds.items())
        lines.append(f"Averaged over seeds, query by query, before testing: {told}.")
    if against:
        levels = " and ".join(f"{alpha:g}" for alpha in alphas)
        if len(alphas) > 1:
            levels = "; ".join(f"{report.alpha:g} for {report.test_set}" for report in reports)
        lines.append(
            f"In parentheses: relative gain over {', '.join(against)}. Significantly different from it "
            f"(two-sided p below {levels}): {T_TEST} by the paired t-test, {RANDOMISATION} by randomisation."
        )
    return lines + [note for report in reports for note in report.notes]


def _counted(report: Report) -> str:
    named = f"{report.test_set}: " if report.test_set else ""
    return f"{named}{report.queries:,} judged {'query' if report.queries == 1 else 'queries'}"


def _seeds(row: Row) -> int:
    return len(next(iter(row.cells.values())).by_seed)


RUNS = "runs"
REPORT = "accuracy.json"
TABLE = "accuracy.md"
PER_QUERY = "per-query.csv"


def prepare_folder(folder: Path, *, for_runs: bool) -> None:
    """Make the folder before any call: hours of reranking must not end with nowhere to go.

    Raises: LoadtestError if it holds an earlier test's files, or cannot be made.
    """
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / REPORT).exists() or any(folder.glob(f"{RUNS}/*")):
            raise LoadtestError(f"{folder}: holds an accuracy test's files already; name another folder")
        if for_runs:
            (folder / RUNS).mkdir(exist_ok=True)


def write_folder(folder: Path, report: Report, evaluated: Sequence[Evaluated]) -> None:
    """Write the report as JSON, its table as Markdown, and every query's values as CSV.

    Raises: LoadtestError if a file cannot be written.
    """
    with writing_to(folder):
        report.write_json(folder / REPORT)
        (folder / TABLE).write_text(render([report]), "utf-8")
        write_per_query(folder / PER_QUERY, evaluated)
