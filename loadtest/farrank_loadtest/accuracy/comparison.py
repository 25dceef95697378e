"""Rankers side by side, each against its own baseline, as the papers' tables have them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from farrank_loadtest.accuracy.measures import PerQuery
from farrank_loadtest.accuracy.significance import RESAMPLES, paired_tests


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model's values for each of its training seeds, over the same queries."""

    name: str
    seeds: tuple[PerQuery, ...]

    def averaged(self, measure: str) -> dict[str, float]:
        """Average each query's values over the seeds."""
        return {query: fmean(seed[measure][query] for seed in self.seeds) for query in self.seeds[0][measure]}


@dataclass(frozen=True, slots=True)
class Cell:
    """A mean over queries and seeds; against the baseline, the relative gain and what the tests say.

    `gain` is None without a baseline, and where the baseline's mean is 0.
    """

    mean: float
    by_seed: tuple[float, ...]
    gain: float | None = None
    t_test_p: float | None = None
    randomisation_p: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One model: its cells by measure; `baseline` is empty where it has none."""

    model: str
    baseline: str
    cells: Mapping[str, Cell]


def compare(
    models: Sequence[Evaluated],
    baselines: Mapping[str, str],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Row]:
    """Make the table's rows; `baselines` maps a model to the one that it is measured against."""
    known = {each.name: each for each in models}
    rows = []
    for each in models:
        baseline = known.get(baselines.get(each.name, ""))
        measures = each.seeds[0]
        cells = {measure: _cell(each, baseline, measure, resamples, seed) for measure in measures}
        rows.append(Row(each.name, baseline.name if baseline else "", cells))
    return rows


def _cell(model: Evaluated, baseline: Evaluated | None, measure: str, resamples: int, seed: int) -> Cell:
    values = model.averaged(measure)
    by_seed = tuple(fmean(each[measure].values()) for each in model.seeds)
    if baseline is None:
        return Cell(fmean(values.values()), by_seed)
    base = baseline.averaged(measure)
    mean, base_mean = fmean(values.values()), fmean(base.values())
    tests = paired_tests(
        list(values.values()), [base[query] for query in values], resamples=resamples, seed=seed
    )
    gain = mean / base_mean - 1 if base_mean else None
    return Cell(mean, by_seed, gain, tests.t_test_p, tests.randomisation_p)
