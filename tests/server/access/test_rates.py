"""A token bucket, at times that the test chooses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_server.access.rates import Bucket


class Now:
    s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def now() -> Now:
    return Now()


def test_a_burst_is_admitted_at_once_and_then_at_the_rate(now: Now) -> None:
    bucket = Bucket(2, 3, clock_s=now)
    assert [bucket.take(1) for _ in range(6)] == [0.0] * 6
    assert bucket.take(1) == 0.5
    now.s += 0.4
    assert bucket.take(1) == pytest.approx(0.1)
    now.s += 0.1
    assert bucket.take(1) == 0.0
    now.s += 1000
    assert [bucket.take(1) for _ in range(6)] == [0.0] * 6
    assert bucket.take(1) > 0


def test_a_slow_rate_lets_one_through_at_a_time(now: Now) -> None:
    bucket = Bucket(0.1, 1, clock_s=now)
    assert bucket.take(1) == 0.0
    assert bucket.take(1) == pytest.approx(10)


def test_the_clock_of_a_fast_rate_rounds(now: Now) -> None:
    bucket = Bucket(45977, 0.015625, clock_s=now)
    assert bucket.take(1170) == 0.0
    now.s += bucket.take(0.25)
    assert bucket.take(0.25) == 0.0


def test_an_amount_beyond_the_bucket_is_admitted_when_full_and_owed(now: Now) -> None:
    bucket = Bucket(100, 1, clock_s=now)
    assert bucket.take(250) == 0.0
    assert bucket.take(10) == pytest.approx(1.6)
    now.s += 1.6
    assert bucket.take(10) == 0.0
    assert bucket.take(1000) == pytest.approx(1.0)


def test_unused_tokens_return_and_excess_tokens_are_owed(now: Now) -> None:
    bucket = Bucket(100, 1, clock_s=now)
    assert bucket.take(80) == 0.0
    bucket.give_back(30)
    assert bucket.take(50) == 0.0
    bucket.give_back(-100)
    assert bucket.take(1) == pytest.approx(1.01)
    bucket.give_back(1e9)
    assert bucket.take(101) == 0.0
    assert bucket.take(1) > 0


@given(
    per_s=st.floats(0.01, 1e6),
    burst_s=st.floats(0.01, 100),
    calls=st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 1e5)), max_size=60),
)
def test_no_more_is_taken_than_burst_and_rate_and_one_call(
    per_s: float, burst_s: float, calls: list[tuple[float, float]]
) -> None:
    now = Now()
    bucket = Bucket(per_s, burst_s, clock_s=now)
    began_s, taken, last = now.s, 0.0, 0.0
    for pause_s, amount in calls:
        now.s += pause_s
        wait_s = bucket.take(amount)
        if wait_s:
            now.s += wait_s
            # A caller that returns after the announced time is admitted.
            assert bucket.take(amount) == 0.0
        taken += amount
        last = amount
        most = max(1.0, per_s * burst_s) + per_s * (now.s - began_s) + last
        assert taken <= most * (1 + 1e-6)
