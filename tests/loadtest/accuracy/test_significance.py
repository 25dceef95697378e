"""The paired tests compared with scipy's own and with all permutations; the kept share and its interval."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from farrank_loadtest.accuracy.evaluation import kept_share, paired_tests

VALUES = [0.61, 0.40, 0.55, 0.90, 0.33, 0.71, 0.52, 0.80]
BASELINE = [0.50, 0.42, 0.35, 0.70, 0.30, 0.70, 0.55, 0.60]


def test_the_t_test_is_scipys_paired_one() -> None:
    expected = stats.ttest_rel(VALUES, BASELINE).pvalue

    assert paired_tests(VALUES, BASELINE)[0] == pytest.approx(expected)


def test_randomisation_counts_all_ways_to_swap_a_few_queries() -> None:
    differences = np.subtract(VALUES, BASELINE)
    means = [np.mean(differences * signs) for signs in product((1, -1), repeat=len(differences))]
    expected = np.mean(np.abs(means) >= abs(differences.mean()) - 1e-12)

    assert paired_tests(VALUES, BASELINE)[1] == pytest.approx(expected)


def test_randomisation_of_many_queries_draws_swaps() -> None:
    """With 200 queries the means of swapped differences are nearly normal, and so is the p-value."""
    randomly = np.random.default_rng(3)
    baseline = randomly.random(200)
    values = baseline + randomly.normal(0.02, 0.2, 200)

    tests = paired_tests(list(values), list(baseline), resamples=20_000, seed=1)

    t_test_p, randomisation_p = tests
    assert t_test_p is not None
    assert 0.02 < t_test_p < 0.9
    assert randomisation_p == pytest.approx(t_test_p, abs=0.015)
    assert tests == paired_tests(list(values), list(baseline), resamples=20_000, seed=1)
    assert tests != paired_tests(list(values), list(baseline), resamples=20_000, seed=2)


def test_chance_is_rarely_significant() -> None:
    """Of 200 comparisons of the same thing, about one in twenty is below 0.05: roughly ten."""
    randomly = np.random.default_rng(7)
    tests = [
        paired_tests(list(randomly.random(30)), list(randomly.random(30)), resamples=500, seed=seed)
        for seed in range(200)
    ]

    for p in zip(*tests, strict=True):
        assert 2 <= sum(one is not None and one < 0.05 for one in p) <= 20


def test_cases_that_need_no_test() -> None:
    assert paired_tests(VALUES, VALUES) == (1.0, 1.0)
    assert paired_tests([0.5], [0.4]) == (None, None)
    always_better = paired_tests([each + 0.125 for each in VALUES], VALUES)
    assert always_better == pytest.approx((0.0, 2 / 2**8))


def test_the_kept_share_is_of_the_means_and_its_interval_of_paired_queries() -> None:
    # Each query but the lost one keeps exactly 90%, so every sample of queries does: the pairs stay together.
    full = [0.2, 1.0, 0.5, 0.1] * 250
    kept = kept_share([0.9 * each for each in full], full, resamples=500, seed=1)
    assert kept is not None
    assert [kept.share, kept.low, kept.high] == pytest.approx([0.9] * 3, abs=0.004)

    some = kept_share([1.0, 0.0] * 50, [1.0] * 100, resamples=999, seed=1)
    assert some is not None
    assert some.share == 0.5
    # Half of 100 queries: the normal approximation of the binomial is within 1.96 * 0.05 of it.
    assert [some.low, some.high] == pytest.approx([0.4, 0.6], abs=0.03)
    assert kept_share([0.5], [0.0]) is None
