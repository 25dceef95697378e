"""The frequency and format of progress lines."""

import io

import pytest

from farrank_cli.terminal import Progress, time_left


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def count_to(progress: Progress, clock: Clock, seconds: int) -> None:
    for tick in range(1, seconds * 10 + 1):
        clock.now_s = tick / 10 + 1e-6
        progress(tick * 100)
    progress.end()


def test_a_terminal_sees_one_line_that_changes() -> None:
    stream, clock = Terminal(), Clock()

    count_to(Progress("documents", stream=stream, clock_s=clock), clock, 1)

    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("1,000 documents\r\x1b[K")


def test_a_log_gets_a_line_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()

    count_to(Progress("documents", stream=stream, clock_s=clock), clock, 25)

    assert stream.getvalue() == "10,000 documents\n20,000 documents\n"


def test_a_terminal_sees_a_bar_with_the_time_left() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress("steps", 40, stream=stream, clock_s=clock)

    clock.now_s = 30.0
    progress(10, "tracing")

    assert stream.getvalue() == "\r\x1b[K[######                  ] 10 of 40 steps, 90 s left, tracing"


def test_a_log_sees_the_time_left_too() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("queries", 1000, stream=stream, clock_s=clock)

    clock.now_s = 600.0
    progress(500)
    progress.end()

    assert stream.getvalue() == "500 of 1,000 queries, 10 min left\n"


def test_resumed_work_does_not_count_for_the_speed() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("steps", stream=stream, clock_s=clock, every_s=0)
    progress.begin("steps", 1000, done=500)

    progress(500)
    clock.now_s = 60.0
    progress(600)

    assert stream.getvalue() == "500 of 1,000 steps\n600 of 1,000 steps, 4 min left\n"


def test_a_rate_that_tells_nothing_yet_gives_no_time() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("queries", 48, stream=stream, clock_s=clock)

    for clock.now_s, count in ((30.0, 1), (60.0, 40)):
        progress(count, timed=count > 32)

    assert stream.getvalue() == "1 of 48 queries\n40 of 48 queries, 12 s left\n"


def test_work_of_a_known_duration_needs_no_count() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress("calls", lasts_s=25, stream=stream, clock_s=clock)

    clock.now_s = 11.0
    progress(0)

    assert stream.getvalue() == "0 calls, 14 s left\n"


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(-1, "0 s left"), (99, "99 s left"), (120, "2 min left"), (11_100, "3 h 05 min left")],
)
def test_times_are_written_as_people_say_them(seconds: float, written: str) -> None:
    assert time_left(seconds) == written
