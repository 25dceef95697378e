"""Limits the log lines that callers can cause."""

import time
from collections.abc import Callable, Hashable

# The limit for one kind: enough to see the problem, and far from filling a disk.
MAX_LINES = 10
EVERY_S = 60.0

# Beyond this number of kinds the one that began first is forgotten, and may begin again.
MAX_KINDS = 4096


class LineRate:
    """Lets `MAX_LINES` lines of each kind pass in `EVERY_S` seconds. Belongs to one thread."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        # The start of each kind's period and the number of its lines since; the oldest first.
        self._kinds: dict[Hashable, tuple[float, int]] = {}

    def left_out(self, kind: Hashable) -> int | None:
        """Return how many lines were left out before this one. None if this one must be left out, too."""
        now_s = self._clock_s()
        began_s, lines = self._kinds.get(kind, (now_s, 0))
        if now_s - began_s < EVERY_S and lines:
            self._kinds[kind] = began_s, lines + 1
            return 0 if lines < MAX_LINES else None
        self._kinds.pop(kind, None)
        if len(self._kinds) >= MAX_KINDS:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = now_s, 1
        return max(0, lines - MAX_LINES)
