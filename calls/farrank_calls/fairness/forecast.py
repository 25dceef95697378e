"""Forecasts when a new call would be done and which calls it would make late, in the fair order."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farrank_calls.fairness.fair_order import BATCH_PART, QUANTUM_S

FloatArray = NDArray[np.float64]


class Shares(NamedTuple):
    """Claims on the device, one per ranker of a call: the work left, and the due time of its last input.

    Inputs of a share are due one after another up to `due_s` (see `farrank_runtimes.batcher`). The remaining
    work is therefore due in the last `left_s` before that. Shapes: (N,) each, in seconds; times are of one
    clock.
    """

    left_s: FloatArray
    due_s: FloatArray
    deadline_s: FloatArray


class Accounts(NamedTuple):
    """The callers that own the shares: weights, and the virtual seconds by which each is ahead of its share.

    Shapes: (A,) each. `progress` is the number of virtual seconds per second of work (see
    `fair_order`). It is None if no account has waited for another recently.
    """

    weights: FloatArray
    leads_s: FloatArray
    is_batch: NDArray[np.bool_]
    progress: float | None


class Forecast(NamedTuple):
    """When a new call would be done, in seconds from now.

    `done_after_s` follows from the work before it, `part_after_s` from its caller's share alone. `makes_late`
    says whether another call would be late that would be in time without it.
    """

    done_after_s: float
    part_after_s: float
    makes_late: bool


def forecast(shares: Shares, new: Shares, now_s: float) -> tuple[float, bool]:
    """Return after how many seconds a new call would be done, and whether it would make another late.

    Work that is due before a share's last input is done before it. A call that is late already is not made
    late. Takes O(N log N).
    """
    before, added = _Backlog(shares), _Backlog(new)
    done_after_s = before.due_by(new.due_s) + added.due_by(new.due_s)  # (M,)
    until_deadline_s = shares.deadline_s - now_s  # (N,)
    alone_s = before.due_by(shares.due_s)  # (N,)
    makes_late = _are_made_late(alone_s, alone_s + added.due_by(shares.due_s), until_deadline_s)
    return float(done_after_s.max()), makes_late


def forecast_among(
    shares: Shares, owners: NDArray[np.intp], new: Shares, owner: int, accounts: Accounts, now_s: float
) -> Forecast:
    """Forecast a call of the account `owner`. `owners` holds the account of each share. Shape: owners (N,).

    Only work that is due earlier goes before the call. For its own account, that is all such work. For
    another account, it is at most that account's part in the meantime plus its arrears. A call may make late
    the calls of an account of the other priority, or of one with at least a quantum more work in flight than
    its own account, and no other calls.
    """
    weight, count = accounts.weights[owner], len(accounts.weights)
    own = Shares(*(each[owners == owner] for each in shares))
    before, added = _Backlog(own), _Backlog(new)
    own_s = float(before.due_by(new.due_s).max() + new.left_s.sum())
    # Progress gives the speed of the account's part once the account is as far ahead as allowed.
    waits_s, slowed = 0.0, 0.0
    if accounts.progress is not None:
        slowed = 1 / (accounts.progress * weight)
        waits_s = accounts.leads_s[owner] - QUANTUM_S
    part_after_s = max(0.0, waits_s * weight + own_s) * slowed
    until_deadline_s = own.deadline_s - now_s
    alone_s = before.due_by(own.due_s)
    with_new_s = alone_s + added.due_by(own.due_s)
    makes_late = _are_made_late(
        (alone_s + waits_s * weight) * slowed, (with_new_s + waits_s * weight) * slowed, until_deadline_s
    )

    left_s = np.bincount(owners, shares.left_s, count)  # (A,)
    max_s = accounts.weights * (own_s / weight + np.maximum(QUANTUM_S - accounts.leads_s, 0.0))  # (A,)
    max_s[owner] = np.inf
    due_s = shares.due_s
    is_batch = bool(accounts.is_batch[owner])
    if is_batch:
        max_s[~accounts.is_batch] = np.inf
        first = ~accounts.is_batch[owners]
        due_s = np.where(first, np.minimum(due_s, new.due_s.min()), due_s)
    elif accounts.is_batch.any():
        interactive_s = float(np.minimum(left_s, max_s)[~accounts.is_batch].sum() + new.left_s.sum())
        batch_s = max(float(left_s[accounts.is_batch].sum()), 1e-9)
        max_s[accounts.is_batch] = left_s[accounts.is_batch] * interactive_s / (BATCH_PART - 1) / batch_s
    part = np.minimum(1.0, max_s / np.maximum(left_s, 1e-9))  # (A,)
    has_less = left_s / accounts.weights <= (left_s[owner] + new.left_s.sum()) / weight + QUANTUM_S
    counts = has_less & (accounts.is_batch == is_batch)
    counts[owner] = True
    seen = Shares(shares.left_s * part[owners], due_s, np.where(counts[owners], shares.deadline_s, np.inf))
    done_after_s, others_late = forecast(seen, new, now_s)
    return Forecast(done_after_s, part_after_s, makes_late or others_late)


def _are_made_late(alone_s: FloatArray, with_new_s: FloatArray, until_deadline_s: FloatArray) -> bool:
    return bool(((alone_s <= until_deadline_s) & (with_new_s > until_deadline_s)).any())


class _Backlog:
    """The seconds of work due by a time. The remaining work of a share falls due at one second per second."""

    def __init__(self, shares: Shares) -> None:
        # By time t, this is the sum over shares of clip(t - begin, 0, left): a share counts from its begin on
        # and stops growing at its end.
        self._begins = np.sort(shares.due_s - shares.left_s)
        self._ends = np.sort(shares.due_s)
        self._begin_sums = np.concatenate(([0.0], np.cumsum(self._begins)))
        self._end_sums = np.concatenate(([0.0], np.cumsum(self._ends)))

    def due_by(self, times_s: FloatArray) -> FloatArray:
        """The seconds of work due by each time. Shapes: (M,) -> (M,)."""
        begun = np.searchsorted(self._begins, times_s)
        ended = np.searchsorted(self._ends, times_s)
        counted: FloatArray = (begun - ended) * times_s - self._begin_sums[begun] + self._end_sums[ended]
        return counted
