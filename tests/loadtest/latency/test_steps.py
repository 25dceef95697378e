"""The choice of the next load."""

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_loadtest.latency.steps import Steps, climb, upwards


def tried(steps: Steps, capacity: float) -> list[float]:
    """Run the steps against a server that holds the objective up to its capacity."""
    amounts: list[float] = []
    with suppress(StopIteration):
        while len(amounts) < 1000:
            held = amounts[-1] <= capacity if amounts else None
            amounts.append(steps.send(held))
    assert len(amounts) < 1000
    return amounts


def test_a_list_runs_upwards_and_ends_with_the_first_that_breaks() -> None:
    assert tried(upwards([40, 10, 20, 10, 80]), 1000) == [10, 20, 40, 80]
    assert tried(upwards([40, 10, 20, 80]), 15) == [10, 20]


def test_a_climb_goes_up_by_the_factor_and_then_halves_the_gap() -> None:
    assert tried(climb(10, 2, 3, 10_000), 100) == [10, 20, 40, 80, 160, 113, 95.1, 104]


def test_a_climb_ends_at_its_ceiling_and_goes_down_where_its_start_breaks() -> None:
    assert tried(climb(10, 2, 3, 50), 1000) == [10, 20, 40, 50]
    assert tried(climb(10, 2, 3, 50), 0) == [10, 5, 2.5, 1.25]
    assert tried(climb(10, 2, 3, 50), 6) == [10, 5, 7.07, 5.95]


@settings(deadline=None)
@given(st.floats(0.5, 50), st.floats(1.1, 4), st.integers(0, 8), st.floats(1, 5000))
def test_a_climb_brackets_the_capacity(
    start: float, factor: float, refinements: int, capacity: float
) -> None:
    ceiling = 2000.0
    amounts = tried(climb(start, factor, refinements, ceiling), capacity)
    held = [amount for amount in amounts if amount <= capacity]
    broke = [amount for amount in amounts if amount > capacity]
    assert len(set(amounts)) == len(amounts)
    assert max(amounts) <= ceiling
    if not broke:
        assert max(held) == ceiling
    elif held:
        # Each refinement takes the square root of the gap; rounding a rate to three digits adds a percent.
        gap = min(broke) / max(held)
        left = 0 if start > capacity else refinements
        assert gap <= factor ** (0.5**left) * 1.011 or start > capacity
