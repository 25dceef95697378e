"""Work in a process of its own, which is ended where it goes beyond its bounds of memory and time."""

import multiprocessing
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_rankers.errors import ExportError

if TYPE_CHECKING:
    # It imports torch, which takes seconds, and only the work may need it.
    from farrank_exporters.export import Progress

# The process is looked at this often.
_LOOK_S = 0.1
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most memory (bytes) and time (seconds) that work may take.

    The memory is the process's own, without the files that it maps. It is bounded on Linux alone.
    """

    memory: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.memory / _GIB:.1f} GiB and {self.seconds / 60:.3g} minutes"


class BeyondBounds(ExportError):
    """The work was ended: it took more memory or time than its bounds allow."""


def run_bounded(work: Callable[["Progress"], None], bounds: Bounds, progress: "Progress") -> None:
    """Run work in a process of its own, and pass its progress on.

    `work` must be picklable. `progress` is also called between two steps, so that it may raise an interrupt.
    Raises: BeyondBounds naming the bound; ExportError if the process ends otherwise; whatever `work` or
    `progress` raises. The process has ended then.
    """
    spawning = multiprocessing.get_context("spawn")
    steps, theirs = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_work, args=(theirs, work), daemon=True)
    end_s = time.monotonic() + bounds.seconds
    step: tuple[str, int, int] | None = None
    process.start()
    try:
        theirs.close()
        while True:
            _check(process.pid, bounds, end_s)
            came = steps.poll(_LOOK_S)
            if came:
                found = steps.recv()
                if found is None:
                    return
                if isinstance(found, BaseException):
                    raise found
                step = found
            if step is not None and (came or step[1]):
                progress(*step)
    except EOFError:
        process.join()
        raise ExportError(
            f"the exporting process ended by itself, with status {process.exitcode}; on Linux -9 often means "
            "that the machine's memory was full"
        ) from None
    finally:
        process.kill()
        process.join()
        steps.close()


def _work(steps: Connection, work: Callable[["Progress"], None]) -> None:
    # Ctrl-C reaches all processes of a terminal; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        work(lambda *step: steps.send(step))
    except Exception as error:
        steps.send(error)
    else:
        steps.send(None)


def _check(pid: int | None, bounds: Bounds, end_s: float) -> None:
    if time.monotonic() > end_s:
        raise BeyondBounds(f"it takes more than {bounds.seconds / 60:.3g} minutes, its bound")
    taken = _own_memory(pid)
    if taken > bounds.memory:
        raise BeyondBounds(
            f"it takes {taken / _GIB:.1f} GiB of memory; its bound is {bounds.memory / _GIB:.1f} GiB"
        )


def _own_memory(pid: int | None) -> int:
    """Measure a process's own memory in bytes; 0 if it has ended or the system does not say it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.findall(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB", status, re.MULTILINE)
    return 1024 * sum(map(int, found))
