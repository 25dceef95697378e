import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from farrank_exporters.parity import kendall_tau, top_overlap

values = st.integers(-5, 5).map(float)


@given(st.lists(st.tuples(values, values), min_size=2, max_size=30))
def test_kendalls_tau_is_scipys(pairs: list[tuple[float, float]]) -> None:
    first, second = np.array(pairs).T
    expected = float(kendalltau(first, second, variant="b").statistic)
    if math.isnan(expected):
        unordered = [len(set(scores.tolist())) == 1 for scores in (first, second)]
        expected = 1.0 if all(unordered) else 0.0
    assert kendall_tau(first, second) == pytest.approx(expected, abs=1e-12)


def test_the_top_is_shared() -> None:
    scores = np.arange(6.0)
    assert top_overlap(scores, scores * 2, 3) == 1
    assert top_overlap(scores, -scores, 3) == 0
    assert top_overlap(scores, np.array([9.0, 1, 2, 3, 4, 5]), 3) == pytest.approx(2 / 3)
    assert top_overlap(scores, -scores, 10) == 1
