"""When calls will be done, given that the device takes their inputs in the order of due times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Share:
    """A call's claim on the device: what is left of it, and when the last of it is due and must be done.

    A call's inputs are due one after another up to `due_s` (see `batching.batcher`), so what is left of it
    is due in the last `left_s` before that.
    """

    left_s: float
    due_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What admitting a call would mean."""

    done_after_s: float
    makes_late: bool


def forecast(shares: Sequence[Share], new: Share, now_s: float) -> Forecast:
    """Say when the new call would be done, and whether a call admitted before would be late because of it.

    Of every call, what is due before another's last input is done before it. A call that is late already
    is not made late.
    """
    left = np.array([share.left_s for share in shares])
    due = np.array([share.due_s for share in shares])
    until_deadline = np.array([share.deadline_s for share in shares]) - now_s
    done_after_s = new.left_s + _due_before(left, due, np.array([new.due_s]))[0]
    alone = _due_before(left, due, due)  # (N,)
    delay = _due_before(np.array([new.left_s]), np.array([new.due_s]), due)  # (N,)
    makes_late = bool(((alone <= until_deadline) & (alone + delay > until_deadline)).any())
    return Forecast(float(done_after_s), makes_late)


def _due_before(left: FloatArray, due: FloatArray, times: FloatArray) -> FloatArray:
    """Seconds of work that is due before each time. Shapes: left, due (N,), times (M,) -> (M,)."""
    before: FloatArray = np.clip(times[:, None] - (due - left), 0.0, left).sum(axis=1)
    return before
