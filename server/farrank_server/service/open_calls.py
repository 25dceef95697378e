"""Open calls of both endpoints, from their beginning until their answer has been read.

gRPC for Python bounds open calls for all callers together, and does not count its refusals. One caller that
reads no answer would take all places, also those of health checks. So places are counted here, by kind of
call and by caller, and gRPC's own bound lies above all of them.
"""

import asyncio
from collections import Counter
from functools import partial

from farrank_server.access.callers import account_of_peer
from farrank_server.batching.fair_order import Account
from farrank_server.engine.admission.shared_room import OF_FREE, SharedRoom
from farrank_server.errors import FarrankError, Reason, ResourceExhausted
from farrank_server.metrics import Metrics

_RETRY_AFTER_MS = 1000


class OpenCalls:
    """Places of one kind of calls, shared by caller and, where `of_connection` is given, by connection.

    A caller may have `of_free` times as many as are free. `limit` names the setting that the number of places
    follows. Belongs to the event loop.
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
        self._most = f"the most with this {limit}" if limit else "the most"
        self._room = SharedRoom(size, of_free)
        self._of_connection = of_connection
        self._on = Counter[str]()
        self._metrics: Metrics | None = None

    def show(self, metrics: Metrics) -> None:
        """Show from now on how many calls are open, and count those that are refused."""
        self._metrics = metrics
        metrics.open_calls.labels(self._kind).set_function(lambda: self._room.held)
        metrics.open_calls_limit.labels(self._kind).set(self._room.size)
        metrics.open_calls_refused.labels(self._kind)

    @property
    def is_used(self) -> bool:
        """Whether any call is open."""
        return self._room.held > 0

    def enter(self, peer: str, account: Account | None = None) -> FarrankError | None:
        """Take a place until the current task, the call's, has ended; return the refusal if there is none.

        gRPC ends the task when all of the answer has left, or the call was cancelled. Without an `account`
        the caller is known by its address.
        """
        account = account_of_peer(peer) if account is None else account
        why, reason = None, Reason.SHARE
        if self._of_connection is not None and self._on[peer] >= self._of_connection:
            why = f"this connection has {self._of_connection} {self._kind} open, the most"
        elif self._room.is_full_for(1):
            why, reason = f"{self._room.held} {self._kind} are open, {self._most}", Reason.CALLS
        elif not self._room.shares(account, 1):
            mine, size = self._room.of(account), self._room.size
            why = f"{mine} {self._kind} of this caller are open, its share of {size}"
        if why is not None:
            if self._metrics is not None:
                self._metrics.open_calls_refused.labels(self._kind).inc()
            return ResourceExhausted(why, reason=reason, retry_after_ms=_RETRY_AFTER_MS)
        self._room.take(1, account)
        self._on[peer] += 1
        task = asyncio.current_task()
        assert task is not None
        # A done callback of the context would keep what gRPC holds for the call in a cycle.
        task.add_done_callback(partial(self._left, peer, account))
        return None

    def _left(self, peer: str, account: Account, _: object) -> None:
        self._room.take(-1, account)
        self._on[peer] -= 1
        if not self._on[peer]:
            del self._on[peer]
