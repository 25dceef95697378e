"""Detects, from the event loop, that the device thread hangs in native code."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# A step may take this many times its expected time: a device may be shared, throttled, or busy with another
# batch.
SLACK = 20.0

# The interval between two checks by the event loop.
TICK_S = 1.0

# The thread does little between two native calls. If it stays there longer than this, it hangs, even if the
# configured bound for native calls is shorter.
MIN_BETWEEN_S = 10.0


class GivenUp(BaseException):
    """Another thread has taken over the device: this thread must end and touch nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    bound_s: float
    began_s: float
    work_s: float


class Watchdog:
    """Bounds the time of every native call of one device thread, and the time between two calls.

    The time in which the thread waits for work is not bounded. `least_bound_s` is the smallest bound of a
    call.

    A hung call cannot be ended from outside. Its callers can get an answer, and another thread can take over.
    The hung thread ends as soon as its call returns.
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
        """Mark one native call on the device thread. The call does `work_s` of the device's backlog.

        Raises: GivenUp before or after the call if the thread was given up.
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
        """Mark a wait for work on the device thread. Its length is not bounded."""
        self._rests = True
        try:
            yield
        finally:
            self._steps += 1
            self._rests = False

    def tick(self, elapsed_s: float) -> bool:
        """Check, on the event loop, whether the thread has exceeded a bound.

        `elapsed_s` is the time since the last check. At most two ticks of it count: after a suspension of the
        process nothing has hung.
        """
        now = step, _ = self._step, self._steps
        if now != self._watched or self._rests:
            self._watched, self._watched_s = now, 0.0
            return False
        self._watched_s += min(elapsed_s, 2 * TICK_S)
        bound_s = max(self._least_bound_s, MIN_BETWEEN_S) if step is None else step.bound_s
        return self._watched_s > bound_s

    def done_s(self) -> float:
        """Estimate from the elapsed time how many seconds of the running call's work are done."""
        step = self._step
        return 0.0 if step is None else min(step.work_s, time.monotonic() - step.began_s)

    def give_up(self) -> None:
        """Make the thread end when its call returns."""
        self._given_up = True

    def _check(self) -> None:
        if self._given_up:
            raise GivenUp
