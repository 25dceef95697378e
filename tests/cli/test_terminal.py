"""How often progress shows, and how."""

import io

from farrank_cli.terminal import Progress


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

    count_to(Progress("documents", stream, clock), clock, 1)

    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("1,000 documents\r\x1b[K")


def test_a_log_gets_a_line_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()

    count_to(Progress("documents", stream, clock), clock, 25)

    assert stream.getvalue() == "10,000 documents\n20,000 documents\n"
