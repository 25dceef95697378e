"""Average gain over FirstP: measured where an accuracy test was made, else the papers'."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from farrank_loadtest.accuracy.report import Report
from farrank_loadtest.efficiency.pairs import Pair
from farrank_loadtest.efficiency.published import PUBLISHED
from farrank_loadtest.errors import InputError, LoadtestError


@dataclass(frozen=True, slots=True)
class Gain:
    """A gain in percent, whether it was measured, and where it is from."""

    percent: float
    measured: bool
    source: str


def parse_accuracy(text: str, usual: str) -> tuple[Path, str]:
    """Read `FILE` or `FILE:MEASURE`.

    Raises: LoadtestError if a colon stands without a measure or a file.
    """
    if text.endswith(".json"):
        return Path(text), usual
    file, _, measure = text.rpartition(":")
    if not (file and measure):
        raise LoadtestError(f"accuracy {text!r}: must be FILE.json, or FILE:MEASURE")
    return Path(file), measure


def measured_gains(reports: Sequence[tuple[Path, str]], pairs: Mapping[str, Pair]) -> dict[str, Gain]:
    """Average each ranker's gain over the test sets, one measure each, as the papers' Table 4 does.

    Raises: InputError naming the file that is no report, lacks the measure, holds no ranker of the papers, or
    one that is compared with something else than its FirstP.
    """
    found: dict[str, dict[Path, float]] = {}
    for path, measure in reports:
        report = Report.read_json(path)
        if measure not in report.measures:
            raise InputError(f"{path}: has no {measure}, only {', '.join(report.measures)}")
        rows = [row for row in report.rows if row.model in pairs]
        if not rows:
            named = ", ".join(row.model for row in report.rows)
            raise InputError(f"{path}: no model has the name of a paper's ranker, only {named}")
        for row in rows:
            expected, gain = pairs[row.model].firstp.name, row.cells[measure].gain
            if row.baseline != expected or gain is None:
                raise InputError(
                    f"{path}: {row.model} must be compared with {expected} (--baseline), "
                    f"not with {row.baseline or 'nothing'}"
                )
            found.setdefault(row.model, {})[path] = 100 * gain
    gains = {}
    for name, by_file in found.items():
        if missing := [str(path) for path, _ in reports if path not in by_file]:
            raise InputError(
                f"{missing[0]}: lacks {name}, so that its average gain would be of fewer test sets"
            )
        measures = ", ".join(dict.fromkeys(measure for _, measure in reports))
        gains[name] = Gain(fmean(by_file.values()), True, f"measured: {measures}")
    return gains


def all_gains(measured: Mapping[str, Gain]) -> dict[str, Gain]:
    """Take the papers' gain for every ranker that none was measured of."""
    published = {
        name: Gain(each.gain_percent, False, f"published: {each.source}") for name, each in PUBLISHED.items()
    }
    return published | dict(measured)
