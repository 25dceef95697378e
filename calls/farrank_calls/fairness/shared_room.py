"""A bounded resource that no caller can fill alone."""

from collections import Counter

from farrank_calls.fairness.fair_order import NOBODY, Account, CallPriority

# A caller may hold this many times the free room, times its weight. This is how A. Choudhury and E. Hahne
# share the buffers of a switch (Dynamic queue length thresholds, IEEE/ACM ToN 1998). A single caller gets
# 15/16 of the room, and the next one finds the rest. The more callers want much, the less each gets.
OF_FREE = 15.0

# All batch work together may hold this many times the free room, which leaves half to interactive work.
BATCH_OF_FREE = 1.0


def within_share(
    account: Account,
    wanted: float,
    *,
    mine: float,
    of_batch: float,
    held: float,
    size: float,
    of_free: float = OF_FREE,
) -> bool:
    """Return whether an account may hold `wanted` more of a room that has space for it.

    `held` of `size` is taken: `mine` by the account itself, `of_batch` by all work of the priority BATCH. An
    account that holds nothing may take all that is free.
    """
    free = size - held
    if account.priority is CallPriority.BATCH and held and of_batch + wanted > BATCH_OF_FREE * free:
        return False
    return not mine or mine + wanted <= of_free * account.weight * free


class SharedRoom:
    """Counts how much of a room of `size` each account holds. Only accounts that hold something are kept.

    An account may hold `of_free` times the free room.
    """

    def __init__(self, size: int, of_free: float = OF_FREE) -> None:
        self.size = size
        self._of_free = of_free
        self.held = 0
        self._of = Counter[Account]()
        self._of_batch = 0

    def __len__(self) -> int:
        return len(self._of)

    def is_full_for(self, wanted: int) -> bool:
        """Whether `wanted` does not fit, for any account."""
        return self.held + wanted > self.size

    def shares(self, account: Account, wanted: int) -> bool:
        """Whether `wanted` more is within the account's share."""
        of_batch, held = self._of_batch, self.held
        mine = self._of[account]
        return within_share(
            account, wanted, mine=mine, of_batch=of_batch, held=held, size=self.size, of_free=self._of_free
        )

    def of(self, account: Account) -> int:
        """The amount that an account holds."""
        return self._of[account]

    def take(self, amount: int, account: Account = NOBODY) -> None:
        """Add an amount to an account. A negative amount gives it back."""
        self.held += amount
        if account.priority is CallPriority.BATCH:
            self._of_batch += amount
        self._of[account] += amount
        if not self._of[account]:
            del self._of[account]
