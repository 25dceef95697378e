"""Requests in receipt: one budget of bytes for all endpoints, shared by caller.

A request counts from before its first byte is read until admission has counted its texts, whose memory
admission limits from then on. An endpoint that does not know a request's size beforehand reserves the largest
size, and gives back the rest once the request has arrived. Without this budget, forty legal requests of 20 MB
would take 2 GB before the first of them is refused.

    with await budget.enter(caller.account, size) as room:
        async with asyncio.timeout(budget.arrival_s(size)):
            data = await read()
        room.shrink(len(data))
        ...  # parse, answer; `room.close()` is called once the call is admitted
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType

from farrank_calls.errors import Reason, ResourceExhausted
from farrank_calls.fairness.fair_order import Account
from farrank_calls.fairness.shared_room import SharedRoom
from farrank_server.config.schema import LimitsConfig
from farrank_server.metrics import Metrics

# A caller may reserve as many bytes as are free: one caller alone gets half, and n callers get 1/(n+1) each,
# so that a newcomer always finds room.
SHARE_OF_FREE = 1.0

# A request waits this long for room. If it is refused then, its caller has time left to try another replica.
MAX_WAIT_S = 10.0

# Every request may take this long to arrive, and a large one longer, by its size.
ARRIVAL_S = 10.0

_RETRY_AFTER_MS = 1000


class Room:
    """The bytes that one request has reserved; a context manager that gives them back. `size` is in bytes."""

    def __init__(self, give_back: Callable[[int], None], size: int) -> None:
        self._give_back = give_back
        self.size = size

    def shrink(self, size: int) -> None:
        """Keep this many bytes and give back the rest; a `size` above the reserved one changes nothing."""
        if size < self.size:
            freed, self.size = self.size - size, size
            self._give_back(freed)

    def close(self) -> None:
        """Give everything back. Further calls do nothing."""
        self.shrink(0)

    def __enter__(self) -> "Room":
        """Return the room itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the room back."""
        self.close()


class ReceivingBudget:
    """Counts the bytes of requests in receipt, for all endpoints. Belongs to the event loop."""

    def __init__(self, limits: LimitsConfig, metrics: Metrics) -> None:
        self._limits = limits
        self._room = SharedRoom(limits.max_receiving_bytes, SHARE_OF_FREE)
        self._waiting: dict[Account, deque[_Waiter]] = {}
        self._waiters = Counter[Account]()
        metrics.receiving_bytes.set_function(lambda: self._room.held)
        metrics.receiving_waiting.set_function(self._waiters.total)

    def arrival_s(self, size: int) -> float:
        """Seconds that a request of this size may take to arrive: 10, plus its bytes at the least rate."""
        return ARRIVAL_S + size / self._limits.min_receiving_bytes_per_s

    async def enter(self, account: Account, size: int) -> Room:
        """Reserve bytes for a request before it is read; wait while there is no room.

        A request larger than the whole budget reserves all of it. Among the waiting callers, the one that has
        reserved least goes first, and the requests of one caller keep their order.
        Raises: ResourceExhausted after 10 s without room.
        """
        size = min(size, self._room.size)
        if account not in self._waiting and self._fits(account, size):
            self._room.take(size, account)
        else:
            await self._wait(account, size)
        return Room(lambda freed: self._free(freed, account), size)

    async def _wait(self, account: Account, size: int) -> None:
        waiter = _Waiter(size)
        self._waiting.setdefault(account, deque()).append(waiter)
        self._waiters[account] += 1
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await waiter.granted
        except BaseException as error:
            # The room may have been granted in the same turn of the loop.
            if waiter.granted.done() and not waiter.granted.cancelled():
                self._free(size, account)
            else:
                self._forget(account, waiter)
                # The caller's next request may need less room.
                self._grant()
            if isinstance(error, TimeoutError):
                held, size = self._room.held, self._room.size
                raise ResourceExhausted(
                    f"request: waited {MAX_WAIT_S:g} s for room to be received; requests in receipt hold "
                    f"{held} bytes, {self._room.of(account)} of them this caller's; max_receiving_bytes is "
                    f"{size}",
                    reason=Reason.RECEIVING,
                    retry_after_ms=_RETRY_AFTER_MS,
                ) from None
            raise
        finally:
            self._waiters[account] -= 1

    def _free(self, size: int, account: Account) -> None:
        self._room.take(-size, account)
        self._grant()

    def _grant(self) -> None:
        """Grant room to waiting requests, as long as one fits."""
        while fitting := [
            account for account, line in self._waiting.items() if self._fits(account, line[0].size)
        ]:
            account = min(fitting, key=lambda each: self._room.of(each) / each.weight)
            waiter = self._waiting[account][0]
            self._room.take(waiter.size, account)
            self._forget(account, waiter)
            # A cancelled waiter is still in the line until its task runs.
            if waiter.granted.cancelled():
                self._room.take(-waiter.size, account)
            else:
                waiter.granted.set_result(None)

    def _forget(self, account: Account, waiter: "_Waiter") -> None:
        line = self._waiting.get(account)
        if line is not None and waiter in line:
            line.remove(waiter)
            if not line:
                del self._waiting[account]

    def _fits(self, account: Account, size: int) -> bool:
        return not self._room.is_full_for(size) and self._room.shares(account, size)


class _Waiter:
    """A request that waits for room."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.granted = asyncio.get_running_loop().create_future()
