"""Work in a process of its own, which is ended where it goes beyond its bounds of memory and time."""

import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

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
    """The work was ended: it took more memory or time than `exceeded`, one of its bounds, allows."""

    def __init__(self, message: str, exceeded: Literal["memory", "seconds"]) -> None:
        super().__init__(message)
        self.exceeded = exceeded


def run_bounded(work: Callable[["Progress"], None], bounds: Bounds, progress: "Progress") -> None:
    """Run work in a process of its own, and pass its progress on.

    `work` must be picklable.
    Raises: BeyondBounds naming the bound; ExportError if the process ends otherwise; whatever `work` or
    `progress` raises. The process has ended then.
    """
    spawning = multiprocessing.get_context("spawn")
    steps, theirs = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_work, args=(theirs, work), daemon=True)
    end_s = time.monotonic() + bounds.seconds
    process.start()
    try:
        theirs.close()
        while True:
            while not steps.poll(_LOOK_S):
                _check(process.pid, bounds, end_s)
            try:
                found = steps.recv()
            except EOFError:
                process.join()
                raise _ended(process.exitcode) from None
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            progress(*found)
            _check(process.pid, bounds, end_s)
    finally:
        process.kill()
        process.join()
        steps.close()


def _ended(status: int | None) -> ExportError:
    """Explain the end of a process that has sent no result. A kill may be for the machine's memory."""
    if status == -signal.SIGKILL:
        return BeyondBounds("the exporting process was killed, perhaps for the machine's memory", "memory")
    return ExportError(f"the exporting process ended by itself, with status {status}")


def _work(steps: Connection, work: Callable[["Progress"], None]) -> None:
    # Ctrl-C reaches all processes of a terminal; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(lambda *step: steps.send(step))
    except Exception as error:
        steps.send(_picklable(error))
    else:
        steps.send(None)


def _end_with_parent() -> None:
    """End this process when its parent has ended: nobody would bound it, and another may export now."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _picklable(error: Exception) -> Exception:
    """Return the error, or one of its name and words if it cannot be sent. Its traceback is then printed."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        traceback.print_exception(error)
        return ExportError(f"{type(error).__name__}: {error}")
    return error


def _check(pid: int | None, bounds: Bounds, end_s: float) -> None:
    if time.monotonic() > end_s:
        raise BeyondBounds(f"it takes more than {bounds.seconds / 60:.3g} minutes, its bound", "seconds")
    taken = _own_memory(pid)
    if taken > bounds.memory:
        took, bound = (f"{each / _GIB:.1f} GiB" for each in (taken, bounds.memory))
        raise BeyondBounds(f"it takes {took} of memory; its bound is {bound}", "memory")


def _own_memory(pid: int | None) -> int:
    """Measure a process's own memory in bytes; 0 if it has ended or the system does not say it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.findall(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB", status, re.MULTILINE)
    return 1024 * sum(map(int, found))
