"""Kept shares of quality and their intervals."""

import numpy as np
import pytest

from farrank_trec.kept_shares import kept_shares


def test_an_interval_is_that_of_paired_queries() -> None:
    full = np.random.default_rng(1).random(400) + 0.5
    share, low, high = kept_shares(np.stack([full, 0.9 * full, full[::-1]]), resamples=10_000, seed=0)
    assert share == pytest.approx([1, 0.9, 1])
    # The same queries in both: their differences do not count, only the query that is lost. Others have more.
    assert low[0] == high[0] == 1
    assert 0.9 * (1 - 4 / 401) < low[1] < high[1] == pytest.approx(0.9)
    assert 0.9 < low[2] < 0.98 < high[2] < 1.1


def test_few_queries_prove_little() -> None:
    """Of 40 queries without a loss, a resample draws the lost one up to three times; of 400, too."""
    for queries in (40, 400):
        share, low, high = kept_shares(np.ones((2, queries)), resamples=10_000, seed=0)
        assert (share[1], high[1]) == (1, 1)
        assert low[1] == pytest.approx(1 - 3 / (queries + 1))


def test_resamples_without_any_quality_of_the_first_are_left_out() -> None:
    share, low, high = kept_shares(np.array([[1.0, 0.0], [1.0, 0.0]]), resamples=200, seed=0)
    assert [*share, *high] == [1, 1, 1, 1]
    assert (low[0], low[1]) == (1, 0)
