"""Answers that callers have not read yet, limited in bytes and in time.

An answer waits until its caller makes room for it, and a caller may never do so. Callers and connections with
many unread bytes get no further large answers. A connection whose answer is far too late is ended, with all
its calls: gRPC has no other way to take an answer back.
"""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass

from farrank_calls.errors import Reason, ResourceExhausted
from farrank_calls.fairness.fair_order import Account
from farrank_calls.fairness.shared_room import SharedRoom
from farrank_server.access.callers import account_of_peer
from farrank_server.config.schema import LimitsConfig
from farrank_server.metrics import Endpoint, Metrics
from farrank_server.service.connections import end_connection

log = logging.getLogger(__name__)

# A smaller answer is never refused: the limit on open calls (`service/open_calls.py`) bounds their number.
SMALL_ANSWER_BYTES = 65_536

# The limit on unread bytes divided by this is the limit of one connection.
CONNECTION_SHARE = 4

# A caller may have as many unread bytes as are free: one caller alone gets half of all.
SHARE_OF_FREE = 1.0

# Time limit for reading a refusal. HTTP/2 needs no free window for it, so a late one means that the
# connection is stuck.
UNREAD_REFUSAL_S = 5.0

# Time limit for reading an answer, or for a large one its size divided by this rate, if that is longer.
UNREAD_S = 60.0
SLOWEST_BYTES_PER_S = 256 * 2**10

# Time between two searches for late answers.
SWEEP_S = 5.0

_RETRY_AFTER_MS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class UnreadAnswer:
    """An answer on its way to a caller."""

    endpoint: Endpoint
    connection: str
    size: int
    late_s: float
    account: Account


class UnreadAnswers:
    """Counts unread answers, for all endpoints. Belongs to the event loop that created it."""

    def __init__(self, limits: LimitsConfig, metrics: Metrics) -> None:
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._unread: dict[UnreadAnswer, None] = {}
        self._by_connection = Counter[str]()
        self._sweeping: asyncio.TimerHandle | None = None
        self._room = SharedRoom(limits.max_unread_bytes, SHARE_OF_FREE)
        metrics.unread_bytes.set_function(lambda: self._room.held)
        metrics.unread_answers.set_function(lambda: len(self._unread))

    def add(
        self, endpoint: Endpoint, connection: str, size: int, account: Account | None = None
    ) -> UnreadAnswer:
        """Note an answer that is about to be sent on a connection (as `peer_name`).

        Without an `account`, the caller is identified by its address.
        Raises: ResourceExhausted if too much is unread already.
        """
        account = account_of_peer(connection) if account is None else account
        before = self._by_connection[connection]
        if size > SMALL_ANSWER_BYTES:
            limit, held = self._room.size, self._room.held
            share = limit // CONNECTION_SHARE
            if before and before + size > share:
                raise _exhausted(
                    f"this connection has {before} bytes of answers unread: no room for {size}; its share of "
                    f"max_unread_bytes is {share}"
                )
            if held and held + size > limit:
                raise _exhausted(
                    f"{held} bytes of answers are unread: no room for {size}; max_unread_bytes is {limit}"
                )
            if not self._room.shares(account, size):
                raise _exhausted(
                    f"this caller has {self._room.of(account)} bytes of answers unread: no room for {size}; "
                    f"its share of max_unread_bytes is the free part, {limit - held}"
                )
        patience_s = max(UNREAD_S, size / SLOWEST_BYTES_PER_S) if size else UNREAD_REFUSAL_S
        unread = UnreadAnswer(endpoint, connection, size, self._loop.time() + patience_s, account)
        self._room.take(size, account)
        self._unread[unread] = None
        self._by_connection[connection] = before + size
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(SWEEP_S, self._sweep)
        return unread

    def remove(self, unread: UnreadAnswer) -> None:
        """Record that an answer was read, or that its caller has disconnected."""
        if unread not in self._unread:
            return
        del self._unread[unread]
        self._room.take(-unread.size, unread.account)
        self._by_connection[unread.connection] -= unread.size
        if not self._by_connection[unread.connection]:
            del self._by_connection[unread.connection]

    def close(self) -> None:
        """Stop searching for late answers."""
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _sweep(self) -> None:
        """End the connections with late answers; other connections stay."""
        now_s = self._loop.time()
        late = {each.connection: each for each in self._unread if each.late_s <= now_s}
        for each in late.values():
            log.warning("an answer of %d bytes was not read in time: its connection is ended", each.size)
            self._metrics.unread_ended.labels(each.endpoint).inc()
            end_connection(each.connection)
        self._sweeping = self._loop.call_later(SWEEP_S, self._sweep) if self._unread else None


def _exhausted(message: str) -> ResourceExhausted:
    return ResourceExhausted(message, reason=Reason.ANSWERS_UNREAD, retry_after_ms=_RETRY_AFTER_MS)
