"""Detects that Java's heap stays full: then every search fails, and only a new process helps.

A search that needs too much memory gives it back and fails alone, however often it is repeated. So the number
of failed searches does not matter, but the memory in use while no search runs.
"""

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

# Share of the memory that was free when the indexes had been opened. Lucene's query cache takes a twentieth.
FULL_SHARE = 0.25

# A look holds searches back and collects garbage. The interval keeps repeated large searches from delaying
# others.
CHECK_EVERY_S = 10.0

# After this time, a look no longer waits for running searches; the next failed search starts another look.
LONGEST_WAIT_S = 5.0


class Heap(NamedTuple):
    """The bytes in use, and their limit, as functions. `in_use` first collects garbage."""

    in_use: Callable[[], int]
    maximum: Callable[[], int]


def java_heap() -> Heap:
    """The heap of the JVM that runs in this process."""
    from jnius import autoclass

    system, runtime = autoclass("java.lang.System"), autoclass("java.lang.Runtime").getRuntime()

    def in_use() -> int:
        gc.collect()  # reference cycles of Python may hold Java objects
        system.gc()
        return int(runtime.totalMemory()) - int(runtime.freeMemory())

    return Heap(in_use, lambda: int(runtime.maxMemory()))


class HeapWatch:
    """Counts running searches and checks the heap. Create it when the indexes are open and no search runs."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._at_first = heap.in_use()
        self._room = heap.maximum() - self._at_first
        self._changed = threading.Condition()
        self._running = 0
        self._is_checking = False
        self._checked_s = -CHECK_EVERY_S

    @contextlib.contextmanager
    def search(self) -> Iterator[None]:
        """Run a search in this block; it begins when no look is in progress."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_checking)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def check(self) -> str | None:
        """Return how full the heap stays, or None if it does not. Call it outside `search`, after a failure.

        It also returns None if there was a look recently, or if searches do not stop running.
        """
        with self._changed:
            if self._is_checking or time.monotonic() - self._checked_s < CHECK_EVERY_S:
                return None
            self._is_checking = True
            try:
                if not self._changed.wait_for(lambda: not self._running, LONGEST_WAIT_S):
                    return None
                kept = self._heap.in_use() - self._at_first
                self._checked_s = time.monotonic()
            finally:
                self._is_checking = False
                self._changed.notify_all()
        if kept < FULL_SHARE * self._room:
            return None
        return (
            f"{kept / 2**20:.0f} of {self._room / 2**20:.0f} MiB that were free at its start are still in use"
        )
