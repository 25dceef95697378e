"""Whether Java's heap stays full: then every search fails, and only another process helps.

A search that needs more than there is gives back what it took, and fails alone, however often it comes. So
what counts is not how many searches fail, but what is left in use when none runs.
"""

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

# Of what was free when the indexes had been opened. Lucene's cache of queries takes a twentieth.
FULL_SHARE = 0.25

# To look means to hold searches back and to collect: a caller of too large ones must not keep others waiting.
LOOK_EVERY_S = 10.0

# After so long, running searches are waited for no more; the next one that fails has another look taken.
LONGEST_WAIT_S = 5.0


class Heap(NamedTuple):
    """Bytes in use, and how many may be. Both are functions; the first collects what nobody needs."""

    in_use: Callable[[], int]
    most: Callable[[], int]


def java_heap() -> Heap:
    """The heap of the JVM in this process, which must run."""
    from jnius import autoclass

    system, runtime = autoclass("java.lang.System"), autoclass("java.lang.Runtime").getRuntime()

    def in_use() -> int:
        gc.collect()  # what Python refers to in circles holds Java's objects
        system.gc()
        return int(runtime.totalMemory()) - int(runtime.freeMemory())

    return Heap(in_use, lambda: int(runtime.maxMemory()))


class HeapWatch:
    """Knows which searches run; made when the indexes are open and none does."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._at_first = heap.in_use()
        self._room = heap.most() - self._at_first
        self._changed = threading.Condition()
        self._running = 0
        self._is_looking = False
        self._looked_s = -LOOK_EVERY_S

    @contextlib.contextmanager
    def search(self) -> Iterator[None]:
        """Run a search in this block; it begins once nobody looks."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_looking)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def look(self) -> str | None:
        """Say how full the heap stays, None if it does not. Called outside of `search`, when one ran out.

        Also None where another look was taken lately, or searches run on and on.
        """
        with self._changed:
            if self._is_looking or time.monotonic() - self._looked_s < LOOK_EVERY_S:
                return None
            self._is_looking = True
            try:
                if not self._changed.wait_for(lambda: not self._running, LONGEST_WAIT_S):
                    return None
                kept = self._heap.in_use() - self._at_first
                self._looked_s = time.monotonic()
            finally:
                self._is_looking = False
                self._changed.notify_all()
        if kept < FULL_SHARE * self._room:
            return None
        return (
            f"{kept / 2**20:.0f} of {self._room / 2**20:.0f} MiB that were free at its start are still in use"
        )
