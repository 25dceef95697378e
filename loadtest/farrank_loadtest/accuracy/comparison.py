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


def paired_tests(
    values: Sequence[float], baseline: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float | None, float | None]:
    """Test the same queries' values of two rankers: Student's paired t-test, and Fisher's randomisation.

    Both p-values are two-sided, and None where fewer than two queries leave nothing to test.
    Randomisation swaps the two values of each query or not: all ways if there are at most `resamples`, else
    so many drawn with `seed`. Values of several training seeds are averaged for each query beforehand.
    Source: Smucker, Allan & Carterette, CIKM 2007.
    """
    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    if len(differences) < 2:
        return None, None
    if np.abs(differences).max() < _ROUNDING:
        return 1.0, 1.0
    # Of a single sample, "samples" flips the signs of its differences: just the swaps that are meant.
    randomised = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    )
    return _t_test(differences), float(randomised.pvalue)


def _t_test(differences: np.ndarray) -> float:
    if np.ptp(differences) < _ROUNDING:
        return 0.0  # The same difference everywhere: no spread that could have brought it about.
    p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return 1.0 if math.isnan(p) else p


# By model: the values of each of its training seeds, over the same queries.
Evaluated = Mapping[str, Sequence[PerQuery]]


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
    models: Evaluated, baselines: Mapping[str, str], *, resamples: int = RESAMPLES, seed: int = 0
) -> list[Row]:
    """Make the table's rows; `baselines` maps a model to the one that it is measured against."""
    rows = []
    for name, seeds in models.items():
        baseline = baselines.get(name, "")
        rivals = models.get(baseline)
        cells = {measure: _cell(seeds, rivals, measure, resamples, seed) for measure in seeds[0]}
        rows.append(Row(name, baseline if rivals else "", cells))
    return rows


def _cell(
    seeds: Sequence[PerQuery], rivals: Sequence[PerQuery] | None, measure: str, resamples: int, seed: int
) -> Cell:
    values = _averaged(seeds, measure)
    mean, by_seed = fmean(values.values()), tuple(fmean(each[measure].values()) for each in seeds)
    if rivals is None:
        return Cell(mean, by_seed)
    base = _averaged(rivals, measure)
    base_mean = fmean(base.values())
    pairs = list(values.values()), [base[query] for query in values]
    gain = mean / base_mean - 1 if base_mean else None
    return Cell(mean, by_seed, gain, *paired_tests(*pairs, resamples=resamples, seed=seed))


def _averaged(seeds: Sequence[PerQuery], measure: str) -> dict[str, float]:
    """Average each query's values over the seeds."""
    return {query: fmean(each[measure][query] for each in seeds) for query in seeds[0][measure]}
