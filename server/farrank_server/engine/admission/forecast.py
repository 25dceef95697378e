"""When calls will be done, given that the device takes their inputs in the order of due times."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Shares(NamedTuple):
    """Claims on the device, one a ranker of a call: what is left of each, and when its last input is due.

    Inputs of a share are due one after another up to `due_s` (see `batching.batcher`), so what is left of it
    is due in the last `left_s` before that. Shapes: (N,) each, in seconds; times are of one clock.
    """

    left_s: FloatArray
    due_s: FloatArray
    deadline_s: FloatArray


@dataclass(frozen=True, slots=True)
class Forecast:
    """What admitting a call would mean."""

    done_after_s: float
    makes_late: bool


def forecast(shares: Shares, new: Shares, now_s: float) -> Forecast:
    """Say when a new call would be done, and whether a call admitted before would be late because of it.

    Work that is due before a share's last input is done before it. A call that is late already is not made
    late. Takes O(N log N).
    """
    before, added = _Backlog(shares), _Backlog(new)
    done_after_s = before.due_by(new.due_s) + added.due_by(new.due_s)  # (M,)
    until_deadline_s = shares.deadline_s - now_s  # (N,)
    alone_s = before.due_by(shares.due_s)  # (N,)
    with_new_s = alone_s + added.due_by(shares.due_s)
    makes_late = bool(((alone_s <= until_deadline_s) & (with_new_s > until_deadline_s)).any())
    return Forecast(float(done_after_s.max()), makes_late)


class _Backlog:
    """Seconds of work by when they are due: what is left of a share is due at one second a second."""

    def __init__(self, shares: Shares) -> None:
        # By a time t, the sum over shares of clip(t - begin, 0, left): those begun count from their begin,
        # and no longer from their end on.
        self._begins = np.sort(shares.due_s - shares.left_s)
        self._ends = np.sort(shares.due_s)
        self._begin_sums = np.concatenate(([0.0], np.cumsum(self._begins)))
        self._end_sums = np.concatenate(([0.0], np.cumsum(self._ends)))

    def due_by(self, times_s: FloatArray) -> FloatArray:
        """Shapes: (M,) -> (M,)."""
        begun = np.searchsorted(self._begins, times_s)
        ended = np.searchsorted(self._ends, times_s)
        counted: FloatArray = (begun - ended) * times_s - self._begin_sums[begun] + self._end_sums[ended]
        return counted
