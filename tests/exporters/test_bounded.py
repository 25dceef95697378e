"""Work in a process of its own: its progress, its errors, and its end at a bound."""

import os
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from farrank_exporters.bounded import BeyondBounds, Bounds, run_bounded
from farrank_rankers.errors import ExportError, SourceError

if TYPE_CHECKING:
    from farrank_exporters.export import Progress

AMPLE = Bounds(memory=2**35, seconds=240.0)


def work(then: str, progress: "Progress") -> None:
    progress("begins", 0, 2)
    progress(str(os.getpid()), 1, 2)
    match then:
        case "raise":
            raise SourceError("model/config.json: is missing")
        case "sleep":
            time.sleep(240)
        case "allocate":
            held: list[bytearray] = []
            while True:
                held.append(bytearray(b"x" * 2**24))
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)


def run(then: str, bounds: Bounds = AMPLE, progress: Any = None) -> list[tuple[str, int, int]]:
    steps: list[tuple[str, int, int]] = []

    def noted(*step: Any) -> None:
        if step not in steps:
            steps.append(step)
        if progress is not None:
            progress(*step)

    try:
        run_bounded(partial(work, then), bounds, noted)
    finally:
        if len(steps) == 2:
            assert not psutil.pid_exists(int(steps[1][0]))
    return steps


def test_the_steps_come_from_another_process() -> None:
    (first, second) = run("end")
    assert first == ("begins", 0, 2)
    assert int(second[0]) != os.getpid()


def test_an_error_of_the_work_is_raised_here() -> None:
    with pytest.raises(SourceError, match=r"^model/config\.json: is missing$"):
        run("raise")


def test_work_that_takes_too_long_is_ended() -> None:
    with pytest.raises(BeyondBounds, match=r"^it takes more than 0\.1 minutes, its bound$"):
        run("sleep", Bounds(AMPLE.memory, seconds=6.0))


def test_work_that_takes_too_much_memory_is_ended() -> None:
    with pytest.raises(BeyondBounds, match=r"^it takes \d\.\d GiB of memory; its bound is 1\.0 GiB$"):
        run("allocate", Bounds(2**30, AMPLE.seconds))


def test_a_process_that_is_killed_is_an_error() -> None:
    with pytest.raises(ExportError, match="ended by itself, with status -9"):
        run("die")


def test_an_interrupt_between_two_steps_ends_the_work() -> None:
    seen: list[str] = []

    def interrupted(text: str, done: int, total: int) -> None:
        seen.append(text)
        # The last step is reported again while it lasts.
        if seen.count(text) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("sleep", progress=interrupted)


def test_bounds_are_written_in_words() -> None:
    assert str(Bounds(3 * 2**29, 90.0)) == "1.5 GiB and 1.5 minutes"
