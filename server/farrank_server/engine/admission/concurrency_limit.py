"""The door that every call passes, both ways: counts calls, closes when the server drains."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from farrank_server.errors import Reason, ResourceExhausted, Unavailable


class ConcurrencyLimit:
    """Lets at most `max_calls` in at once. Belongs to the event loop."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._calls = 0
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Be inside for the time of one call.

        Raises: Unavailable when closed, ResourceExhausted when full.
        """
        if self._closed:
            raise Unavailable("the server is draining; ask another replica", reason=Reason.DRAINING)
        if self._calls >= self._max_calls:
            raise ResourceExhausted(
                f"{self._calls} calls are in flight, all that max_concurrent_calls allows",
                reason=Reason.CALLS,
                retry_after_ms=1000,
            )
        self._calls += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0:
                self._empty.set()

    async def drain(self, timeout_s: float) -> bool:
        """Let nobody in any more; wait until all have left. False if some have not in time."""
        self._closed = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        return self._empty.is_set()
