"""Which load comes next."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_loadtest.latency.steps import Climb, Listed, Steps


def tried(steps: Steps, capacity: float) -> list[float]:
    """Run the steps against a server that holds the objective up to its capacity."""
    amounts = []
    while (amount := steps.next()) is not None:
        amounts.append(amount)
        steps.tell(amount, held=amount <= capacity)
        assert len(amounts) < 1000
    return amounts


def test_a_list_runs_upwards_and_ends_with_the_first_that_breaks() -> None:
    assert tried(Listed([40, 10, 20, 10, 80]), 1000) == [10, 20, 40, 80]
    assert tried(Listed([40, 10, 20, 80]), 15) == [10, 20]


def test_a_climb_goes_up_by_the_factor_and_then_halves_the_gap() -> None:
    assert tried(Climb(10, 2, 3, 10_000), 100) == [10, 20, 40, 80, 160, 113, 95.1, 104]


def test_a_climb_ends_at_its_ceiling_and_goes_down_where_its_start_breaks() -> None:
    assert tried(Climb(10, 2, 3, 50), 1000) == [10, 20, 40, 50]
    assert tried(Climb(10, 2, 3, 50), 0) == [10, 5, 2.5, 1.25]
    assert tried(Climb(10, 2, 3, 50), 6) == [10, 5, 7.07, 5.95]


@settings(deadline=None)
@given(st.floats(0.5, 50), st.floats(1.1, 4), st.integers(0, 8), st.floats(1, 5000))
def test_a_climb_brackets_the_capacity(
    start: float, factor: float, refinements: int, capacity: float
) -> None:
    ceiling = 2000.0
    amounts = tried(Climb(start, factor, refinements, ceiling), capacity)
    held = [amount for amount in amounts if amount <= capacity]
    broke = [amount for amount in amounts if amount > capacity]
    assert len(set(amounts)) == len(amounts)
    assert max(amounts) <= ceiling
    if not broke:
        assert max(held) == ceiling
    elif held:
        # Each refinement takes the square root of the gap; three digits of a rate round it by a percent.
        gap = min(broke) / max(held)
        left = 0 if start > capacity else refinements
        assert gap <= factor ** (0.5**left) * 1.011 or start > capacity


@pytest.mark.parametrize(("start", "factor", "ceiling"), [(0, 2, 10), (1, 1, 10), (20, 2, 10)])
def test_a_climb_that_cannot_climb_is_refused(start: float, factor: float, ceiling: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Climb(start, factor, 3, ceiling)
