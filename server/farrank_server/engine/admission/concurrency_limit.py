"""Counts the calls in flight, and refuses new ones when there are too many or the server drains."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from farrank_calls.errors import Reason, ResourceExhausted, Unavailable
from farrank_calls.fairness.fair_order import NOBODY, Account
from farrank_calls.fairness.shared_room import SharedRoom


class ConcurrencyLimit:
    """Admits at most `max_calls` at once, and of each caller at most its share. Belongs to the event loop."""

    def __init__(self, max_calls: int) -> None:
        self.room = SharedRoom(max_calls)
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def passing(self, account: Account = NOBODY) -> Iterator[None]:
        """Count one call as in flight for the duration of the context.

        Raises: Unavailable while draining; ResourceExhausted when full, or when the account has its share.
        """
        if self._closed:
            raise Unavailable("the server is draining; ask another replica", reason=Reason.DRAINING)
        room = self.room
        if room.is_full_for(1):
            raise ResourceExhausted(
                f"{room.held} calls are in flight, all that max_concurrent_calls allows",
                reason=Reason.CALLS,
                retry_after_ms=1000,
            )
        if not room.shares(account, 1):
            raise ResourceExhausted(
                f"{room.of(account)} calls of this caller are in flight, its share of {room.size}, which "
                "max_concurrent_calls allows all callers together",
                reason=Reason.SHARE,
                retry_after_ms=1000,
            )
        leave = self.stay(account)
        try:
            yield
        finally:
            leave()

    def stay(self, account: Account = NOBODY) -> Callable[[], None]:
        """Count one more place for an account until the returned function is called. Call it exactly once."""
        self.room.take(1, account)
        self._empty.clear()

        def leave() -> None:
            self.room.take(-1, account)
            if not self.room.held:
                self._empty.set()

        return leave

    async def drain(self, timeout_s: float) -> bool:
        """Admit no more calls and wait until all have left. Returns False if some have not left in time."""
        self._closed = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        return self._empty.is_set()
