"""The due times of calls in an open loop."""

import random
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_loadtest.loops import constant_arrivals, poisson_arrivals

RATES = st.floats(0.1, 2000.0)
DURATIONS = st.floats(0.1, 10.0)


@settings(deadline=None)
@given(RATES, DURATIONS)
def test_constant_arrivals_are_even_and_as_many_as_the_rate_says(rate: float, duration_s: float) -> None:
    due = list(constant_arrivals(rate, duration_s, random.Random(0)))
    assert due[0] == 0.0
    assert due[-1] < duration_s
    assert abs(len(due) - rate * duration_s) < 1
    assert all(abs(b - a - 1 / rate) < 1e-9 for a, b in pairwise(due))


@settings(deadline=None)
@given(RATES, DURATIONS, st.integers())
def test_poisson_arrivals_come_in_order_within_the_duration(
    rate: float, duration_s: float, seed: int
) -> None:
    due = list(poisson_arrivals(rate, duration_s, random.Random(seed)))
    assert due == sorted(due)
    assert all(0 < each < duration_s for each in due)
    assert due == list(poisson_arrivals(rate, duration_s, random.Random(seed)))
    # A Poisson count deviates by more than six standard deviations once in hundreds of millions. The
    # additional few are for means near 0, where the distribution is skewed.
    mean = rate * duration_s
    assert abs(len(due) - mean) < 6 * mean**0.5 + 12


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(list(poisson_arrivals(100.0, 1000.0, random.Random(7))))
    assert abs(gaps.mean() - 0.01) < 0.0002
    # The standard deviation equals the mean, and 63.2% of gaps are shorter: even spacing would show.
    assert abs(gaps.std() / gaps.mean() - 1) < 0.02
    assert abs((gaps < 0.01).mean() - (1 - np.exp(-1))) < 0.01
