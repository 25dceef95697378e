"""Percentiles compared with numpy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_loadtest.latency.recorder import Histogram

PERCENTS = [1, 25, 50, 90, 95, 99, 99.9, 100]


def filled(values_s: list[float]) -> Histogram:
    histogram = Histogram()
    for value_s in values_s:
        histogram.record(value_s)
    return histogram


@settings(max_examples=40)
@given(st.lists(st.floats(1e-5, 100.0), min_size=1, max_size=300))
def test_percentiles_are_numpys_to_three_digits(values_s: list[float]) -> None:
    histogram = filled(values_s)
    wanted = np.percentile(values_s, PERCENTS, method="inverted_cdf")
    # The resolution is a microsecond or a thousandth.
    found_s = histogram.percentiles_s(PERCENTS)
    assert found_s == pytest.approx(list(wanted), rel=1.1e-3, abs=1.1e-6)
    assert [*map(histogram.percentile_s, PERCENTS)] == found_s
    assert histogram.count == len(values_s)
    assert histogram.mean_s == pytest.approx(np.mean(values_s), rel=1e-3, abs=1.1e-6)
    assert histogram.max_s == pytest.approx(max(values_s), rel=1e-3, abs=1.1e-6)


def test_a_long_tail_is_found() -> None:
    drawn = np.random.default_rng(3).lognormal(-3, 1, 50_000)
    histogram = filled(list(drawn))
    for percent in (50, 99, 99.9):
        assert histogram.percentile_s(percent) == pytest.approx(np.percentile(drawn, percent), rel=2e-3)


def test_histograms_add_up_to_the_histogram_of_all() -> None:
    values_s = list(np.random.default_rng(4).lognormal(-3, 1, 2000))
    whole, part = filled(values_s[:500]), filled(values_s[500:])
    whole.add(part)
    assert [*map(whole.percentile_s, PERCENTS)] == [*map(filled(values_s).percentile_s, PERCENTS)]
    assert whole.count == 2000
    assert whole.mean_s == pytest.approx(np.mean(values_s), rel=1e-4)


def test_without_a_value_everything_is_zero_and_extremes_are_kept() -> None:
    nothing = Histogram()
    assert (nothing.count, nothing.mean_s, nothing.max_s, nothing.percentile_s(99)) == (0, 0, 0, 0)
    assert nothing.percentiles_s([50, 99]) == [0, 0]
    extremes = filled([0.0, 1e9])
    assert extremes.percentile_s(1) == pytest.approx(1e-6)
    assert extremes.max_s == pytest.approx(3600, rel=1e-3)
