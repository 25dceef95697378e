"""Work that waits for a stage, and slots at a stage, in fair order among accounts."""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from time import monotonic
from typing import Generic, TypeVar

from farrank_calls.fairness.fair_order import Account, FairOrder, Rank

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Work in the fair order of its accounts; the work of one account in order of arrival. Not thread-safe.

    `quantum_s` is how far an account may be ahead of its share before others go first, in seconds of work.
    """

    def __init__(self, quantum_s: float) -> None:
        self._order = FairOrder(quantum_s)
        self._waiting: dict[Account, deque[tuple[int, T]]] = {}
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, account: Account) -> None:
        """Record that work begins without having waited. `done` ends it."""
        self._order.begin(account)

    def put(self, account: Account, work: T) -> None:
        """Add work. `done` or `remove` ends it."""
        self._waiting.setdefault(account, deque()).append((next(self._numbers), work))
        self._order.begin(account)

    def take(self) -> tuple[Account, T]:
        """Remove and return the work that goes next. Raises: ValueError if none waits."""
        account = min(self._waiting, key=self._key) if len(self._waiting) != 1 else next(iter(self._waiting))
        _, work = self._waiting[account].popleft()
        self._tidy(account)
        return account, work

    def done(self, account: Account, seconds: float) -> None:
        """Record that work of an account is done, and how long it took."""
        self._order.charge(account, seconds)
        self._order.end(account)

    def remove(self, account: Account, work: T) -> None:
        """Drop work if it still waits."""
        waiting = self._waiting.get(account, deque())
        kept = deque(each for each in waiting if each[1] is not work)
        if len(kept) < len(waiting):
            self._waiting[account] = kept
            self._order.end(account)
            self._tidy(account)

    def clear(self) -> list[T]:
        """Drop all waiting work and return it."""
        dropped = [(account, work) for account, its in self._waiting.items() for _, work in its]
        self._waiting.clear()
        for account, _ in dropped:
            self._order.end(account)
        return [work for _, work in dropped]

    def _tidy(self, account: Account) -> None:
        if not self._waiting[account]:
            del self._waiting[account]

    def _key(self, account: Account) -> tuple[Rank, int]:
        return self._order.rank(account), self._waiting[account][0][0]


class FairSlots:
    """Runs at most `slots` pieces of work at a time, in fair order. Belongs to the event loop.

    `quantum_s`: as in `FairQueue`.
    """

    def __init__(self, slots: int, quantum_s: float) -> None:
        self._free = slots
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(quantum_s)

    async def take(self, account: Account) -> Callable[[], None]:
        """Wait for a slot. Call the returned function to give it back; further calls do nothing.

        The time for which the slot is held is charged to the account.
        """
        if self._free:
            self._free -= 1
            self._queue.begin(account)
        else:
            turn = asyncio.get_running_loop().create_future()
            self._queue.put(account, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._give_back(account, 0.0)
                else:
                    self._queue.remove(account, turn)
                raise
        began_s, is_held = monotonic(), True

        def give_back() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._give_back(account, monotonic() - began_s)

        return give_back

    def _give_back(self, account: Account, seconds: float) -> None:
        self._queue.done(account, seconds)
        while self._queue:
            account, turn = self._queue.take()
            if not turn.cancelled():
                turn.set_result(None)
                return
            # The waiter was cancelled, and its task has not run yet to remove it.
            self._queue.done(account, 0.0)
        self._free += 1
