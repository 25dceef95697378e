"""Work in a process of its own: its progress, its errors, and its end at a bound."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from farrank_exporters.bounded import BeyondBounds, Bounds, run_bounded
from farrank_rankers.errors import ExportError, SourceError

if TYPE_CHECKING:
    from farrank_exporters.export import Progress

AMPLE = Bounds(memory=2**35, seconds=240.0)


class Odd(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


def work(then: str, progress: "Progress") -> None:
    progress("begins", 0, 2)
    progress(str(os.getpid()), 1, 2)
    match then:
        case "raise":
            raise SourceError("model/config.json: is missing")
        case "raise odd":
            raise Odd("a", "b")
        case "raise eof":
            raise EOFError("half a file")
        case "sleep":
            time.sleep(240)
        case "allocate":
            held: list[bytearray] = []
            while True:
                held.append(bytearray(b"x" * 2**24))
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)


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
    with pytest.raises(BeyondBounds, match="was killed, perhaps for the machine's memory"):
        run("die")
    with pytest.raises(ExportError, match="ended by itself, with status 3"):
        run("exit")


def test_an_error_that_cannot_be_sent_is_told_by_name() -> None:
    with pytest.raises(ExportError, match=r"^Odd: a and b$"):
        run("raise odd")


def test_the_end_of_a_file_is_an_error_of_the_work() -> None:
    with pytest.raises(EOFError, match="half a file"):
        run("raise eof")


def test_an_interrupt_of_a_step_ends_the_work() -> None:
    def interrupted(text: str, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("sleep", progress=interrupted)


def test_bounds_are_written_in_words() -> None:
    assert str(Bounds(3 * 2**29, 90.0)) == "1.5 GiB and 1.5 minutes"


def test_the_process_ends_with_its_parent() -> None:
    """A kill leaves no time to end it."""
    code = """
from functools import partial
from pathlib import Path
from farrank_exporters.bounded import run_bounded
import test_bounded
run_bounded(partial(test_bounded.work, "sleep"), test_bounded.AMPLE, lambda text, *_: print(text, flush=True))
"""
    here = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=here, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begins\n"
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        child.wait(60)
    assert not child.is_running()
