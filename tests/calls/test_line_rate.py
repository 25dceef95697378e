"""The largest number of log lines for one kind of event."""

import pytest

from farrank_calls.telemetry import line_rate
from farrank_calls.telemetry.line_rate import EVERY_S, MAX_LINES, LineRate


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_lines_of_a_kind_are_left_out_until_the_next_minute_which_says_how_many() -> None:
    clock = Clock()
    rate = LineRate(clock)
    assert [rate.left_out("a") for _ in range(MAX_LINES + 5)] == [0] * MAX_LINES + [None] * 5
    assert rate.left_out("b") == 0
    clock.now_s += EVERY_S - 0.1
    assert rate.left_out("a") is None
    clock.now_s += 0.1
    assert rate.left_out("a") == 6
    assert rate.left_out("a") == 0
    clock.now_s += 10 * EVERY_S
    assert rate.left_out("a") == 0


def test_the_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_rate, "MAX_KINDS", 2)
    rate = LineRate()
    for kind in ("a", "b"):
        for _ in range(MAX_LINES):
            assert rate.left_out(kind) == 0
    assert rate.left_out("c") == 0
    assert rate.left_out("b") is None
    # Forgotten, because it began first.
    assert rate.left_out("a") == 0
