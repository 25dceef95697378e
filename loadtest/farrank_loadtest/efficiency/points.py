"""The plot's points: each ranker with its FirstP, its gain, and the papers' figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from farrank_loadtest.accuracy.accuracy_report import Report
from farrank_loadtest.depths import Depth, depth_text
from farrank_loadtest.efficiency.published import PUBLISHED, PublishedTimes
from farrank_loadtest.efficiency.run_times import RelativeTimes
from farrank_loadtest.errors import LoadtestError
from farrank_rankers.adaptive import why_not_adaptive
from farrank_rankers.family import family_named
from farrank_rankers.papers import PaperModel
from farrank_trec.errors import InputError


@dataclass(frozen=True, slots=True)
class Pair:
    """A ranker at a depth, and the FirstP on the same backbone, which reads only the first chunk."""

    ranker: PaperModel
    firstp: PaperModel
    depth: Depth = "all"

    @property
    def name(self) -> str:
        """The ranker's name, with the depth if it is adaptive."""
        return self.ranker.name if self.depth == "all" else f"{self.ranker.name} {depth_text(self.depth)}"


def all_pairs(models: Mapping[str, PaperModel]) -> dict[str, Pair]:
    """Pair every ranker that reads beyond the first chunk with the shortest FirstP on its backbone."""
    firstps: dict[str, PaperModel] = {}
    for model in sorted(models.values(), key=lambda each: each.spec.chunking.window):
        if model.spec.chunking.kind == "first":
            firstps.setdefault(model.spec.backbone, model)
    return {
        name: Pair(model, firstps[model.spec.backbone])
        for name, model in models.items()
        if model is not firstps[model.spec.backbone]
    }


def at_depths(pairs: Mapping[str, Pair], depths: Sequence[Depth]) -> dict[str, Pair]:
    """Add each ranker that can be adaptive at each of the depths."""
    deeper = [
        replace(pair, depth=depth)
        for pair in pairs.values()
        if why_not_adaptive(pair.ranker.spec) is None
        for depth in depths
        if depth != "all"
    ]
    return {**pairs, **{pair.name: pair for pair in deeper}}


def chosen_pairs(
    pairs: Mapping[str, Pair], names: Sequence[str], gains: "Mapping[str, Gain]", depths: Sequence[Depth]
) -> list[Pair]:
    """Look up pairs by their ranker's name; without names give all. A pair without a gain has no point.

    Raises: LoadtestError if there is no such ranker, if it is a FirstP itself, or if no ranker has a gain at
    one of the depths.
    """
    rankers = {pair.ranker.name for pair in pairs.values()}
    firsts = {pair.firstp.name for pair in pairs.values()}
    for name in names:
        if name in firsts:
            raise LoadtestError(f"ranker {name!r}: is a FirstP, which is measured with every other ranker")
        if name not in rankers:
            raise LoadtestError(
                f"ranker {name!r}: the papers have no ranker of this name, only {', '.join(sorted(rankers))}"
            )
    chosen = [
        pair for name, pair in pairs.items() if name in gains and (not names or pair.ranker.name in names)
    ]
    for depth in depths:
        if not any(pair.depth == depth for pair in chosen):
            words = depth_text(depth)
            raise LoadtestError(
                f"depth {words}: --accuracy has no gain of a model named 'RANKER {words}', "
                "and the papers have none"
            )
    return chosen


@dataclass(frozen=True, slots=True)
class Gain:
    """A gain in percent, whether it was measured, and its source.

    A measured one has the number of queries, the largest p-value of its tests over all test sets, and
    whether these are all below their levels. None: unknown.
    """

    percent: float
    measured: bool
    source: str
    queries: int | None = None
    p: float | None = None
    significant: bool = False


def parse_accuracy(text: str, usual: str) -> tuple[Path, str]:
    """Read `FILE` or `FILE:MEASURE`.

    Raises: LoadtestError if the measure or the file is empty.
    """
    if text.endswith(".json"):
        return Path(text), usual
    file, _, measure = text.rpartition(":")
    if not (file and measure):
        raise LoadtestError(f"accuracy {text!r}: must be FILE.json, or FILE:MEASURE")
    return Path(file), measure


def measured_gains(reports: Sequence[tuple[Path, str]], pairs: Mapping[str, Pair]) -> dict[str, Gain]:
    """Average each ranker's gain over the test sets, one measure each, as in the papers' Table 4.

    Raises: InputError naming the file that is not a report, lacks the measure, holds no ranker of the papers,
    or compares one with something other than its FirstP.
    """
    found: dict[str, dict[Path, tuple[float, float | None, bool]]] = {}
    queries = 0
    for path, measure in reports:
        report = Report.read_json(path)
        if measure not in report.measures:
            raise InputError(f"{path}: has no {measure}, only {', '.join(report.measures)}")
        # With `--depth`, an accuracy test calls full reading `NAME all`.
        rows = [replace(row, model=row.model.removesuffix(" all")) for row in report.rows]
        rows = [row for row in rows if row.model in pairs]
        if not rows:
            named = ", ".join(row.model for row in report.rows)
            raise InputError(f"{path}: no model has the name of a paper's ranker, only {named}")
        for row in rows:
            cell = row.cells[measure]
            expected, gain = pairs[row.model].firstp.name, cell.gain
            if row.baseline != expected or gain is None:
                raise InputError(
                    f"{path}: {row.model} must be compared with {expected} (--baseline), "
                    f"not with {row.baseline or 'nothing'}"
                )
            tests = [p for p in (cell.t_test_p, cell.randomisation_p) if p is not None]
            p = max(tests, default=None)
            found.setdefault(row.model, {})[path] = 100 * gain, p, p is not None and p < report.alpha
        queries += report.queries
    gains = {}
    for name, by_file in found.items():
        if missing := [str(path) for path, _ in reports if path not in by_file]:
            raise InputError(f"{missing[0]}: lacks {name}, whose average gain would be over fewer test sets")
        measures = ", ".join(dict.fromkeys(measure for _, measure in reports))
        percents, p_values, significant = zip(*by_file.values(), strict=True)
        known = [p for p in p_values if p is not None]
        gains[name] = Gain(
            fmean(percents),
            True,
            f"measured: {measures}",
            queries,
            max(known) if len(known) == len(p_values) else None,
            all(significant),
        )
    return gains


def all_gains(measured: Mapping[str, Gain]) -> dict[str, Gain]:
    """Take the papers' gain for every ranker without a measured one."""
    published = {
        name: Gain(each.gain_percent, False, f"published: {each.source}")
        for name, each in PUBLISHED.items()
        if each.gain_percent is not None
    }
    return published | dict(measured)


Approach = Literal[
    "chunks, aggregated", "chunks, tokens interact", "one long input", "query apart", "promising chunks alone"
]


@dataclass(frozen=True, slots=True)
class Point:
    """One ranker."""

    approach: Approach
    measured: RelativeTimes
    gain: Gain
    published: PublishedTimes

    @property
    def published_run_time(self) -> float | None:
        """The middle of the papers' values; None if they give none."""
        return None if self.published.run_time is None else sum(self.published.run_time) / 2

    @property
    def moved(self) -> float | None:
        """Our run time divided by the papers'."""
        theirs = self.published_run_time
        return None if theirs is None else self.measured.run_time / theirs

    @property
    def why(self) -> str:
        """The measured factors of the run time."""
        measured = self.measured
        parts = [
            f"{measured.inputs:.3g}× inputs",
            f"{measured.tokens:.3g}× positions ({measured.tokens_if_padded:.3g}× if all were padded)",
            f"{measured.cost_of_token:.3g}× the time a position",
        ]
        if measured.aggregator_share >= 0.005:
            parts.append(f"aggregator {measured.aggregator_share:.0%}")
        return ", ".join(parts)


def make_points(
    measured: Mapping[str, RelativeTimes], gains: Mapping[str, Gain], pairs: Mapping[str, Pair]
) -> list[Point]:
    """Join the figures of each ranker, in the order of the papers' models."""
    return [
        Point(approach_of(pair), measured[name], gains[name], _published(pair))
        for name, pair in pairs.items()
        if name in measured and name in gains
    ]


def _published(pair: Pair) -> PublishedTimes:
    full = PUBLISHED[pair.ranker.name]
    if pair.depth == "all":
        return full
    return PublishedTimes(f"{full.title}, {depth_text(pair.depth)}", None)


def approach_of(pair: Pair) -> Approach:
    """Name the way in which a ranker scores a long document."""
    if pair.depth != "all":
        return "promising chunks alone"
    family = family_named(pair.ranker.spec.family)
    if family.plan == "dual":
        return "query apart"
    if family.whole:
        return "one long input"
    return "chunks, tokens interact" if family.compares_tokens else "chunks, aggregated"
