"""How much a key may use in a time: token buckets, one for calls and one for the tokens that they cost."""

import time
from collections.abc import Callable


class Bucket:
    """Fills with `per_s` a second and holds as much as comes in `burst_s`, but no less than 1.

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
        """Take an amount and return 0, or take nothing and return in how many seconds to ask again.

        What is more than the bucket ever holds is taken of a full one, which then owes the rest: otherwise
        it could never be had.
        """
        self._fill()
        needed = min(amount, self._holds)
        # Who comes back when told to is not sent away for a rounding.
        if self._level < needed * (1 - 1e-9):
            return (needed - self._level) / self.per_s
        self._level -= amount
        return 0.0

    def give_back(self, amount: float) -> None:
        """Correct what was taken: it was so much less, or more if the amount is below 0."""
        self._fill()
        self._level = min(self._holds, self._level + amount)

    def _fill(self) -> None:
        now_s = self._clock_s()
        self._level = min(self._holds, self._level + (now_s - self._filled_at_s) * self.per_s)
        self._filled_at_s = now_s
