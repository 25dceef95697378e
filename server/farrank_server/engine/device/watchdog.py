"""How the event loop notices that the device's thread hangs in native code."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# A step may take so many times what it should: a device may be shared, throttled, or busy with another batch.
SLACK = 20.0

# How often the event loop looks.
TICK_S = 1.0

# Between two native calls the thread does little, whatever they may take: where it stays longer, it hangs.
LEAST_BETWEEN_S = 10.0


class GivenUp(BaseException):
    """Another thread has taken over the device: this one must end and touch nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    bound_s: float
    began_s: float
    work_s: float


class Watchdog:
    """Bounds every native call of one device thread, and the time between two while it is not at rest.

    `least_bound_s` holds where less is expected.

    A hung call cannot be ended from outside. Its callers can be answered, and another thread can take over;
    the hung one ends as soon as its call returns.
    """

    def __init__(self, least_bound_s: float) -> None:
        self._least_bound_s = least_bound_s
        self._step: _Step | None = None
        self._steps = 0
        self._rests = False
        self._watched: tuple[_Step | None, int] = (None, 0)
        self._watched_s = 0.0
        self._given_up = False

    @contextmanager
    def step(self, expected_s: float = 0.0, work_s: float = 0.0) -> Iterator[None]:
        """Be in one native call, which does `work_s` of the device's backlog.

        On the device's thread; raises GivenUp if it was given up meanwhile.
        """
        self._check()
        self._step = _Step(max(self._least_bound_s, SLACK * expected_s), time.monotonic(), work_s)
        try:
            yield
        finally:
            self._steps += 1
            self._step = None
            self._check()

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Wait for something to do, for however long. On the device's thread."""
        self._rests = True
        try:
            yield
        finally:
            self._steps += 1
            self._rests = False

    def tick(self, elapsed_s: float) -> bool:
        """Look, on the event loop, whether the thread is beyond a bound; `elapsed_s` since the last look.

        A late tick counts for at most two: in a process that was suspended nothing has hung.
        """
        now = step, _ = self._step, self._steps
        if now != self._watched or self._rests:
            self._watched, self._watched_s = now, 0.0
            return False
        self._watched_s += min(elapsed_s, 2 * TICK_S)
        bound_s = max(self._least_bound_s, LEAST_BETWEEN_S) if step is None else step.bound_s
        return self._watched_s > bound_s

    def done_s(self) -> float:
        """Say how much of the running call's work is done by now, as far as time tells, in seconds."""
        step = self._step
        return 0.0 if step is None else min(step.work_s, time.monotonic() - step.began_s)

    def give_up(self) -> None:
        """Let the thread end when its call returns."""
        self._given_up = True

    def _check(self) -> None:
        if self._given_up:
            raise GivenUp
