"""Rankers side by side, each against its own baseline, with paired tests, as the papers' tables have them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from scipy import stats

from farrank_trec.measures import PerQuery

RESAMPLES = 9_999
# What averaging over seeds leaves of a difference that is none.
_ROUNDING = 1e-12
# Resamples are drawn so many at once: all at once would take a gigabyte for MS MARCO's dev queries.
_BATCH = 256


@dataclass(frozen=True, slots=True)
class Significance:
    """Two-sided p-values; None where fewer than two queries leave nothing to test."""

    t_test_p: float | None
    randomisation_p: float | None


def paired_tests(
    values: Sequence[float], baseline: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0
) -> Significance:
    """Test the same queries' values of two rankers: Student's paired t-test, and Fisher's randomisation.

    Randomisation swaps the two values of each query or not: all ways if there are at most `resamples`, else
    so many drawn with `seed`. Values of several training seeds are averaged for each query beforehand.
    Source: Smucker, Allan & Carterette, CIKM 2007.
    """
    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    if len(differences) < 2:
        return Significance(None, None)
    if np.abs(differences).max() < _ROUNDING:
        return Significance(1.0, 1.0)
    # Of a single sample, "samples" flips the signs of its differences: just the swaps that are meant.
    randomised = stats.permutation_test(
        (differences,),
        _mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    )
    return Significance(_t_test(differences), float(randomised.pvalue))


def _mean(differences: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(differences.mean(axis=axis))


def _t_test(differences: np.ndarray) -> float:
    if np.ptp(differences) < _ROUNDING:
        return 0.0  # The same difference everywhere: no spread that could have brought it about.
    p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return 1.0 if math.isnan(p) else p


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
