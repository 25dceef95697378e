"""Is one ranker's mean over queries another's by chance? Paired tests on the differences query by query."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

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
