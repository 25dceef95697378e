"""The order in which the accounts of several callers use one stage: fair shares and priorities.

Each account (a caller) has a virtual time: the work done for it divided by its weight. The stage has one,
too: the virtual time that an account would have if all accounts with waiting work had been served at the same
time, each by its weight (the reference of A. Parekh and R. Gallager, IEEE/ACM ToN 1993). An account that is
at most a quantum ahead of the stage is eligible. Among eligible accounts the work due first goes first, as if
there were no accounts: callers that take no more than their share meet in the order that suits all of them
best. An account that is further ahead waits until the others have had their share or have no waiting work (I.
Stoica and H. Abdel-Wahab, 1995, choose in a similar way). So a single account has the whole stage, and its
work keeps its order.

Work of the priority BATCH waits for interactive work, but not forever: while both wait, batch work gets one
part in `BATCH_PART` of the work.
"""

from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

# While interactive work waits, one second in this many goes to batch work.
BATCH_PART = 16

# How far an account may be ahead of its share of the device, in seconds of its work. Most calls take less and
# are not interrupted.
QUANTUM_S = 0.5

# An account without waiting work keeps its share of the stage for this part of a quantum. A client that sends
# its next call after an answer is away for a moment, and other accounts must not gain from that.
LINGERS = 0.2

# The measured progress is averaged over about this many seconds of work.
PROGRESS_MEMORY_S = 2.0


class CallPriority(IntEnum):
    """The kind of a call: its user waits for the answer, or the work can wait."""

    INTERACTIVE = 0
    BATCH = 1


class Account(NamedTuple):
    """The owner of work. Accounts of one priority share a stage by their weights."""

    name: str = ""
    weight: float = 1.0
    priority: CallPriority = CallPriority.INTERACTIVE


# The account of work without an owner.
NOBODY = Account()


class Rank(NamedTuple):
    """The key that orders accounts: the lowest goes first. Among equals, the work due first goes first."""

    level: int
    ahead_at_s: float


class FairShares:
    """The service that the accounts of one priority have had from a stage. Times are seconds of its work.

    Only these accounts are kept: those with waiting work, those that had some a moment ago, and those that
    have had more than their share.
    """

    def __init__(self, quantum_s: float) -> None:
        self._quantum_s = quantum_s
        self._lingers_s = LINGERS * quantum_s
        self._now_s = 0.0
        self._reached_s: dict[Account, float] = {}
        self._wanting: dict[Account, int] = {}
        # Accounts without waiting work, and the time at which they may be forgotten: one entry each.
        self._rests_until_s: dict[Account, float] = {}
        self._resting: list[tuple[float, Account]] = []
        self._has_entry: set[Account] = set()
        self._weights = 0.0
        # Virtual seconds per second of work: 1 over the sum of the weights that share the stage. None: not
        # measured.
        self.progress: float | None = None

    def __len__(self) -> int:
        return len(self._reached_s)

    @property
    def is_wanted(self) -> bool:
        """Whether any account has waiting work."""
        return bool(self._wanting)

    def begin(self, account: Account) -> None:
        """Record that an account has one more piece of work."""
        if account not in self._reached_s:
            self._weights += account.weight
        if account not in self._wanting:
            # An account without waiting work saves up no service.
            self._reached_s[account] = max(self._now_s, self._reached_s.get(account, 0.0))
        self._wanting[account] = self._wanting.get(account, 0) + 1

    def end(self, account: Account) -> None:
        """Record that an account has one piece of work less. Call it once for each `begin`."""
        self._wanting[account] -= 1
        if self._wanting[account]:
            return
        del self._wanting[account]
        if not self._wanting:
            # An idle stage has no accounts to balance.
            self._reached_s, self._rests_until_s, self._resting, self._has_entry = {}, {}, [], set()
            self._weights, self._now_s, self.progress = 0.0, 0.0, None
            return
        self._rests_until_s[account] = max(self._now_s, self._reached_s[account]) + self._lingers_s
        self._rest(account)
        self._forget()

    def ahead_at_s(self, account: Account, extra_s: float = 0.0) -> float | None:
        """Return the account's virtual time if it is more than a quantum ahead, else None.

        `extra_s` is work to count as if it had been done for it.
        """
        reached_s = self._reached_s.get(account, self._now_s) + extra_s / account.weight
        return reached_s if reached_s > self._now_s + self._quantum_s else None

    def lead_s(self, account: Account) -> float:
        """How far an account is ahead of its share, in virtual seconds. Any thread may ask."""
        now_s = self._now_s
        return max(0.0, self._reached_s.get(account, now_s) - now_s)

    def charge(self, account: Account, work_s: float) -> None:
        """Count work done for an account that has waiting work."""
        if account not in self._reached_s:
            return
        if self.ahead_at_s(account) is not None and all(map(self.ahead_at_s, self._wanting)):
            # No account is eligible: the stage's virtual time is behind, so advance it.
            self._now_s = min(self._reached_s[each] for each in self._wanting) - self._quantum_s
        advanced_s = work_s / self._weights
        self._reached_s[account] += work_s / account.weight
        self._now_s += advanced_s
        self._forget()
        seen, weight = advanced_s / work_s, work_s / (work_s + PROGRESS_MEMORY_S)
        self.progress = seen if self.progress is None else self.progress + weight * (seen - self.progress)

    def _rest(self, account: Account) -> None:
        if account not in self._has_entry:
            self._has_entry.add(account)
            heappush(self._resting, (self._rests_until_s[account], account))

    def _forget(self) -> None:
        """Forget accounts that have had no waiting work for a while and are no longer ahead."""
        while self._resting and self._resting[0][0] <= self._now_s:
            account = heappop(self._resting)[1]
            self._has_entry.discard(account)
            if account in self._wanting:
                continue
            if self._rests_until_s[account] > self._now_s:
                # It came back meanwhile and has no work again.
                self._rest(account)
                continue
            del self._reached_s[account], self._rests_until_s[account]
            # Sum again: repeated additions and subtractions would leave rounding errors.
            self._weights = sum(each.weight for each in self._reached_s) if self._reached_s else 0.0


class FairOrder:
    """The order among the accounts of a stage. Belongs to one thread, except where stated.

    `quantum_s` is how far an account may be ahead of its share, in seconds of the stage's work.
    """

    def __init__(self, quantum_s: float) -> None:
        self.shares = {priority: FairShares(quantum_s) for priority in CallPriority}
        # The seconds of batch work that go before interactive work.
        self._owed_s = 0.0
        # The part of batch work in the time in which some waited.
        self._batch_part = 1.0

    def begin(self, account: Account) -> None:
        """Record that an account has one more piece of work."""
        self.shares[account.priority].begin(account)

    def end(self, account: Account) -> None:
        """Record that an account has one piece of work less. Call it once for each `begin`."""
        self.shares[account.priority].end(account)

    def rank(self, account: Account, extra_s: float = 0.0) -> Rank:
        """Return an account's rank, as if `extra_s` of work had been done for it already."""
        level = 0
        if account.priority is CallPriority.BATCH:
            level = -1 if self._owed_s > 0 else 1
        ahead_s = self.shares[account.priority].ahead_at_s(account, extra_s)
        return Rank(level, 0.0 if ahead_s is None else ahead_s)

    def charge(self, account: Account, work_s: float) -> None:
        """Count work done for an account, as long as it has waiting work."""
        if work_s <= 0:
            return
        self.shares[account.priority].charge(account, work_s)
        if self.shares[CallPriority.BATCH].is_wanted:
            weight, is_batch = work_s / (work_s + PROGRESS_MEMORY_S), account.priority is CallPriority.BATCH
            self._batch_part += weight * (is_batch - self._batch_part)
        if not all(self.shares[priority].is_wanted for priority in CallPriority):
            self._owed_s = 0.0
        elif account.priority is CallPriority.INTERACTIVE:
            self._owed_s += work_s / (BATCH_PART - 1)
        else:
            self._owed_s -= work_s

    def progress(self, priority: CallPriority) -> float | None:
        """Recent virtual seconds of a priority's accounts per second of the stage's work. Any thread may ask.

        None if no account has waited for another.
        """
        progress = self.shares[priority].progress
        if progress is None or priority is CallPriority.INTERACTIVE:
            return progress
        return progress * max(self._batch_part, 1 / BATCH_PART)
