"""Open calls of both endpoints, from their start until their answer has been read.

gRPC for Python limits open calls for all callers together, and does not count its refusals. One caller that
reads no answer would take all places, including those of health checks. So this module counts places by kind
of call and by caller, and gRPC's own limit lies above all of them.
"""

import asyncio
from collections import Counter
from functools import partial

from farrank_calls.errors import FarrankError, Reason, ResourceExhausted
from farrank_calls.fairness.fair_order import Account
from farrank_calls.fairness.shared_room import OF_FREE, SharedRoom
from farrank_server.access.callers import account_of_peer
from farrank_server.metrics import Metrics

_RETRY_AFTER_MS = 1000


class OpenCalls:
    """Places for one kind of call, shared by caller and, if `of_connection` is given, by connection.

    A caller may hold `of_free` times as many places as are free. `limit` names the setting that determines
    the number of places. Belongs to the event loop.
    """

    def __init__(
        self,
        kind: str,
        size: int,
        *,
        of_free: float = OF_FREE,
        of_connection: int | None = None,
        limit: str = "",
    ) -> None:
        self._kind = kind
        self._at_limit = f"as many as {limit} allows" if limit else "the maximum"
        self._room = SharedRoom(size, of_free)
        self._of_connection = of_connection
        self._by_connection = Counter[str]()
        self._metrics: Metrics | None = None

    def show(self, metrics: Metrics) -> None:
        """Export the number of open calls, and count refused ones."""
        self._metrics = metrics
        metrics.open_calls.labels(self._kind).set_function(lambda: self._room.held)
        metrics.open_calls_limit.labels(self._kind).set(self._room.size)
        metrics.open_calls_refused.labels(self._kind)

    @property
    def is_used(self) -> bool:
        """Whether any call is open."""
        return self._room.held > 0

    def enter(self, peer: str, account: Account | None = None) -> FarrankError | None:
        """Take a place until the current task (the call's) has ended; return the refusal if there is none.

        gRPC ends the task when the whole answer has been sent, or the call was cancelled. Without an
        `account`, the caller is identified by its address.
        """
        account = account_of_peer(peer) if account is None else account
        why, reason = None, Reason.SHARE
        if self._of_connection is not None and self._by_connection[peer] >= self._of_connection:
            why = f"this connection has {self._of_connection} {self._kind} open, the maximum"
        elif self._room.is_full_for(1):
            why, reason = f"{self._room.held} {self._kind} are open, {self._at_limit}", Reason.CALLS
        elif not self._room.shares(account, 1):
            mine, size = self._room.of(account), self._room.size
            why = f"{mine} {self._kind} of this caller are open, its share of {size}"
        if why is not None:
            if self._metrics is not None:
                self._metrics.open_calls_refused.labels(self._kind).inc()
            return ResourceExhausted(why, reason=reason, retry_after_ms=_RETRY_AFTER_MS)
        self._room.take(1, account)
        self._by_connection[peer] += 1
        task = asyncio.current_task()
        assert task is not None
        # A done callback of the context would keep all that gRPC holds for the call in a cycle.
        task.add_done_callback(partial(self._leave, peer, account))
        return None

    def _leave(self, peer: str, account: Account, _: object) -> None:
        self._room.take(-1, account)
        self._by_connection[peer] -= 1
        if not self._by_connection[peer]:
            del self._by_connection[peer]
