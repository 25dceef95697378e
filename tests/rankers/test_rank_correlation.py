import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from farrank_rankers.rank_correlation import kendall_tau

values = st.integers(-5, 5).map(float)


@given(st.lists(st.tuples(values, values), min_size=2, max_size=30))
def test_kendalls_tau_is_scipys(pairs: list[tuple[float, float]]) -> None:
    first, second = np.array(pairs).T
    expected = float(kendalltau(first, second, variant="b").statistic)
    if math.isnan(expected):
        unordered = [len(set(scores.tolist())) == 1 for scores in (first, second)]
        expected = 1.0 if all(unordered) else 0.0
    assert kendall_tau(first, second) == pytest.approx(expected, abs=1e-12)
