"""Seeds are averaged query by query, then compared with the model's own baseline."""

import pytest
from scipy import stats

from farrank_loadtest.accuracy.evaluation import compare

# The order of queries differs from the rival's, because pairs are made by query.
FIRSTP = {"firstp": [{"RR": {"q3": 0.6, "q1": 0.2, "q2": 0.4}}]}
MAXP = {"maxp": [{"RR": {"q1": 0.5, "q2": 0.5, "q3": 0.5}}, {"RR": {"q3": 0.9, "q2": 0.3, "q1": 0.3}}]}
NOTHING = {"nothing": [{"RR": {"q1": 0.0, "q2": 0.0, "q3": 0.0}}]}


def test_seeds_are_averaged_before_the_test() -> None:
    first, second = compare(FIRSTP | MAXP, {"maxp": "firstp"})

    cell = second.cells["RR"]
    assert cell.by_seed == pytest.approx((0.5, 0.5))
    assert cell.mean == pytest.approx(0.5)
    assert cell.gain == pytest.approx(0.5 / 0.4 - 1)
    assert cell.t_test_p == pytest.approx(stats.ttest_rel([0.4, 0.4, 0.7], [0.2, 0.4, 0.6]).pvalue)
    # Two of three queries differ: all swaps of both to one side are as extreme.
    assert cell.randomisation_p == pytest.approx(0.5)
    assert (first.baseline, first.cells["RR"].gain, first.cells["RR"].t_test_p) == ("", None, None)


def test_nothing_gains_over_zero() -> None:
    _, row = compare(NOTHING | FIRSTP, {"firstp": "nothing"})

    assert row.cells["RR"].gain is None
    assert row.cells["RR"].t_test_p is not None
