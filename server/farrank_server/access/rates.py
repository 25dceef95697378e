"""Rate limits of a key: token buckets, one for calls and one for the tokens that they cost."""

import time
from collections.abc import Callable

# A monotonic clock that has run for a year rounds to 4 ns.
TOLERANCE_S = 1e-8


class Bucket:
    """Fills at `per_s` a second and holds the amount of `burst_s` seconds, but at least 1.

    Belongs to one thread. `clock_s` is a clock that never goes back.
    """

    def __init__(
        self, per_s: float, burst_s: float, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.per_s = per_s
        self._holds = max(1.0, per_s * burst_s)
        self._clock_s = clock_s
        self._level = self._holds
        self._filled_at_s = clock_s()

    def take(self, amount: float) -> float:
        """Take an amount and return 0, or take nothing and return the seconds after which to ask again.

        An amount above the bucket's size is taken from a full bucket, which then owes the rest: otherwise it
        could never be taken.
        """
        self._fill()
        needed = min(amount, self._holds)
        # The tolerance admits a caller that comes back exactly at the announced time, by a clock that rounds.
        if self._level < needed * (1 - 1e-9) - self.per_s * TOLERANCE_S:
            return (needed - self._level) / self.per_s
        self._level -= amount
        return 0.0

    def give_back(self, amount: float) -> None:
        """Correct an earlier `take`: it took this much too much, or too little if the amount is below 0."""
        self._fill()
        self._level = min(self._holds, self._level + amount)

    def _fill(self) -> None:
        now_s = self._clock_s()
        self._level = min(self._holds, self._level + (now_s - self._filled_at_s) * self.per_s)
        self._filled_at_s = now_s
