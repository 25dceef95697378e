"""The files of an accuracy test: a report that can be read back, the papers' table, each query's values."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.kept_files import markdown_table, read_kept, write_csv, writing_to
from farrank_trec.measures import PerQuery, mean_name

# Model -> the values of each of its training seeds, over the same queries.
Evaluated = Mapping[str, Sequence[PerQuery]]


@dataclass(frozen=True, slots=True)
class Kept:
    """The share of another model's mean, and its 95% interval (`farrank_trec.kept_shares`)."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Cell:
    """A mean over queries and seeds, its relative gain over the baseline, and the tests' p-values.

    `gain` is None without a baseline, and if the baseline's mean is 0; `kept`, without full reading.
    """

    mean: float
    by_seed: tuple[float, ...]
    gain: float | None = None
    t_test_p: float | None = None
    randomisation_p: float | None = None
    kept: Kept | None = None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model: its cells by measure.

    `baseline` is empty if it has none, and so is `full`, the model whose mean's share it keeps.
    """

    model: str
    baseline: str
    cells: Mapping[str, Cell]
    full: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A test set's table and its origin.

    `queries` is the number of queries averaged over; `notes` are sentences that a reader of the figures must
    know; `inputs` names the files and the server behind the figures.
    """

    test_set: str
    queries: int
    alpha: float
    measures: tuple[str, ...]
    rows: tuple[ModelRow, ...]
    notes: tuple[str, ...]
    inputs: Mapping[str, Any]

    def write_json(self, path: Path) -> None:
        """Write the whole report."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def read_json(cls, path: Path) -> Self:
        """Read a file of `write_json`.

        Raises: InputError if the file is something else.
        """
        return read_kept(path, cls, "farrank loadtest accuracy", inputs=dict)


T_TEST = "ᵃ"
RANDOMISATION = "ᵇ"


def render(reports: Sequence[Report]) -> str:
    """Write one Markdown table, aligned for a terminal too: a column for each test set and measure.

    With several test sets, the last column is the average gain, as in the papers.
    Raises: LoadtestError if two reports name the same test set, or have different models.
    """
    _check_alike(reports)
    several = len(reports) > 1
    heads = ["Retriever / Ranker"]
    lines = [[row.model] for row in reports[0].rows]
    gains: list[list[float | None]] = [[] for _ in lines]
    for report in reports:
        for measure in report.measures:
            heads.append(f"{report.test_set} {mean_name(measure)}" if several else mean_name(measure))
            cells = [row.cells[measure] for row in report.rows]
            best = max(round(cell.mean, 3) for cell in cells)
            for line, gained, cell in zip(lines, gains, cells, strict=True):
                line.append(_cell(cell, report.alpha, is_best=round(cell.mean, 3) == best))
                gained.append(cell.gain)
    if several:
        heads.append("Avg. gain")
        for line, gained in zip(lines, gains, strict=True):
            known = [gain for gain in gained if gain is not None]
            line.append(_percent(fmean(known)) if len(known) == len(gained) else "–")
    return markdown_table(heads, lines) + "\n\n" + "\n".join(_legend(reports)) + "\n"


def _check_alike(reports: Sequence[Report]) -> None:
    names = [report.test_set for report in reports]
    models = [", ".join(row.model for row in report.rows) for report in reports]
    for name, known in zip(names, models, strict=True):
        if names.count(name) > 1:
            raise LoadtestError(f"two reports name the test set {name!r} (--test-set names it)")
        if known != models[0]:
            raise LoadtestError(
                f"test set {name!r} has the models {known}; {names[0]!r} has {models[0]}: "
                "one table needs the same models in the same order"
            )


def _percent(gain: float) -> str:
    # A true minus, as in the papers: it is as wide as the plus.
    return f"{gain:+.1%}".replace("-", "−")


def _cell(cell: Cell, alpha: float, *, is_best: bool) -> str:
    tests = {T_TEST: cell.t_test_p, RANDOMISATION: cell.randomisation_p}
    marks = "".join(mark for mark, p in tests.items() if p is not None and p < alpha)
    mean = f"**{cell.mean:.3f}**" if is_best else f"{cell.mean:.3f}"
    kept = (
        ""
        if cell.kept is None
        else f"; kept {cell.kept.share:.1%} [{cell.kept.low:.1%}, {cell.kept.high:.1%}]"
    )
    return mean + marks + ("" if cell.gain is None else f" ({_percent(cell.gain)})") + kept


def _legend(reports: Sequence[Report]) -> list[str]:
    lines = [
        (f"{each.test_set}: " if each.test_set else "")
        + f"{each.queries:,} judged {'query' if each.queries == 1 else 'queries'}."
        for each in reports
    ]
    rows = [row for report in reports for row in report.rows]
    seeds = {row.model: len(next(iter(row.cells.values())).by_seed) for row in rows}
    if told := ", ".join(f"{model} {count}" for model, count in seeds.items() if count > 1):
        lines.append(f"Averaged over seeds, query by query, before testing: {told}.")
    if against := sorted({row.baseline for row in rows if row.baseline}):
        levels = f"{reports[0].alpha:g}"
        if len({report.alpha for report in reports}) > 1:
            levels = "; ".join(f"{report.alpha:g} for {report.test_set}" for report in reports)
        lines.append(
            f"In parentheses: relative gain over {', '.join(against)}. Significantly different from it "
            f"(two-sided p below {levels}): {T_TEST} by the paired t-test, {RANDOMISATION} by randomisation."
        )
    if fulls := sorted({row.full for row in rows if row.full}):
        lines.append(
            f"Kept: the share of the mean of {', '.join(fulls)}, in brackets the 95% interval of a paired "
            "bootstrap over queries and one more, of which everything is lost."
        )
    return lines + [note for report in reports for note in report.notes]


RUNS = "runs"
REPORT = "accuracy.json"
TABLE = "accuracy.md"
PER_QUERY = "per-query.csv"


def write_folder(folder: Path, report: Report, evaluated: Evaluated) -> None:
    """Write the report as JSON, its table as Markdown, and the values of every query as CSV.

    Raises: LoadtestError if a file cannot be written.
    """
    rows = [
        {
            "model": model,
            "seed": number,
            "query_id": query,
            **{name: of[query] for name, of in values.items()},
        }
        for model, seeds in evaluated.items()
        for number, values in enumerate(seeds, start=1)
        for query in values[report.measures[0]]
    ]
    with writing_to(folder):
        report.write_json(folder / REPORT)
        (folder / TABLE).write_text(render([report]), "utf-8")
        write_csv(folder / PER_QUERY, rows)
