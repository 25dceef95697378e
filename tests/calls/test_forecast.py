from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_calls.fairness.forecast import Shares
from farrank_calls.fairness.forecast import forecast as forecast_of


class Share(NamedTuple):
    left_s: float
    due_s: float
    deadline_s: float


def shares_of(shares: list[Share]) -> Shares:
    return Shares(*np.array(shares, dtype=np.float64).reshape(-1, 3).T)


def forecast(shares: list[Share], new: Share, now_s: float) -> tuple[float, bool]:
    return forecast_of(shares_of(shares), shares_of([new]), now_s)


works = st.lists(
    st.tuples(st.integers(1, 20), st.integers(0, 30), st.integers(1, 200)), min_size=0, max_size=8
)


def literal_done(shares: list[Share], of: Share) -> float:
    """Divide every call's remaining work into hundredths, and count those that are due before `of` ends."""
    slices = 0
    for share in shares:
        for step in range(round(share.left_s * 100)):
            slices += share.due_s - share.left_s + (step + 0.5) / 100 < of.due_s
    return slices / 100


@given(works, st.tuples(st.integers(1, 20), st.integers(0, 30), st.integers(1, 200)))
def test_the_forecast_is_the_count_of_work_due_before(
    others: list[tuple[int, int, int]], new: tuple[int, int, int]
) -> None:
    def share(left: int, begins: int, deadline: int) -> Share:
        return Share(left, begins + left, deadline)

    shares, mine = [share(*each) for each in others], share(*new)
    done_after_s, makes_late = forecast(shares, mine, now_s=0.0)
    everyone = [*shares, mine]
    assert done_after_s == pytest.approx(literal_done(everyone, mine), abs=0.05)
    made_late = any(
        literal_done(shares, each) <= each.deadline_s < literal_done(everyone, each) for each in shares
    )
    assert makes_late == made_late


def test_a_small_call_does_not_wait_for_what_is_due_after_it() -> None:
    large = Share(left_s=100.0, due_s=100.0, deadline_s=1000.0)
    done_after_s, makes_late = forecast([large], Share(0.5, due_s=1.5, deadline_s=3.0), now_s=1.0)
    assert done_after_s == pytest.approx(0.5 + 1.5)
    assert not makes_late


def test_a_call_that_would_take_the_time_of_one_admitted_before_is_seen() -> None:
    admitted = Share(left_s=9.0, due_s=9.0, deadline_s=9.2)
    assert forecast([admitted], Share(0.5, due_s=1.5, deadline_s=60.0), now_s=0.0)[1]
    late_already = Share(left_s=9.0, due_s=9.0, deadline_s=8.0)
    assert not forecast([late_already], Share(0.5, due_s=1.5, deadline_s=60.0), now_s=0.0)[1]
