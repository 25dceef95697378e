"""Accepts HTTP connections within limits: in total, per caller and by the process's open files.

asyncio's own server takes every connection, allows a handshake one minute, and logs a traceback for each
connection that it cannot accept because files are short.
"""

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable

from farrank_calls.fairness.fair_order import Account
from farrank_calls.fairness.shared_room import SharedRoom
from farrank_server.access.callers import account_of_peer
from farrank_server.http.connection import UNREAD_S, Connection
from farrank_server.metrics import Metrics
from farrank_server.service.connections import peer_name

log = logging.getLogger(__name__)

# Limit on all connections. If the process may open few files, at most this share of them is for connections.
MAX_CONNECTIONS = 4096
SHARE_OF_FILES = 0.5

# Time limit of a TLS handshake.
HANDSHAKE_S = 10.0

# Wait after a failure to accept for lack of files or memory, and time between two log lines about it.
RETRY_S = 0.2
LOG_EVERY_S = 60.0

# Connections accepted in a row before the event loop runs other tasks.
AT_ONCE = 64

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _AcceptedConnection:
    """An accepted connection, from its handshake to its end."""

    def __init__(self, account: Account, connection: Connection) -> None:
        self.account = account
        self.connection = connection
        self.task: asyncio.Task[None] | None = None


class Acceptor:
    """Replaces asyncio's server: accepts from a listening socket until closed.

    When all connections are taken, a new one replaces a waiting connection of the caller that holds the most.
    A caller above its share loses one of its own. The one waiting longest for a complete request ends.
    If none waits, the new one is refused. Belongs to the event loop.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext | None,
        connection: Callable[[], Connection],
        metrics: Metrics,
    ) -> None:
        self._listening = listening
        self._context = context
        self._connection = connection
        self._metrics = metrics
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else int(files * SHARE_OF_FILES)
        self._room = SharedRoom(min(MAX_CONNECTIONS, few))
        # Connections without a call in flight, by caller; the longest waiting first.
        self._waiting: dict[Account, dict[_AcceptedConnection, None]] = {}
        self._all: set[_AcceptedConnection] = set()
        self._logged_s: float | None = None
        metrics.http_connections.set_function(lambda: self._room.held)
        metrics.http_connections_limit.set(self._room.size)
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Stop accepting; open connections stay."""
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        """Wait until the accepting task has ended."""
        await asyncio.wait((self._accepting,))

    def abort(self) -> None:
        """End every open connection."""
        for each in list(self._all):
            self._end(each)

    async def _accept(self) -> None:
        loop, taken = asyncio.get_running_loop(), 0
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError as error:
                if error.errno in _NO_ROOM:
                    self._report_no_room(error)
                # Any other error means that the connection ended before it was accepted. An error that stays
                # must not hold up the event loop either.
                await asyncio.sleep(RETRY_S if error.errno in _NO_ROOM else 0)
                continue
            self._take(accepted, address)
            # `sock_accept` does not yield to the event loop while a connection is ready.
            taken += 1
            if taken % AT_ONCE == 0:
                await asyncio.sleep(0)

    def _take(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        account = account_of_peer(peer_name(*address[:2]))
        if not self._make_room(account):
            self._metrics.http_connections_ended.labels("refused").inc()
            accepted.close()
            return
        new = _AcceptedConnection(account, self._connection())
        new.connection.on_wait = lambda waits: self._note(new, waits)
        self._room.take(1, account)
        self._all.add(new)
        self._note(new, waits=True)
        new.task = asyncio.create_task(self._serve(new, accepted))

        def give_back(_: object) -> None:
            self._room.take(-1, account)
            self._all.discard(new)
            self._note(new, waits=False)
            accepted.close()

        # Not in the task: one that is cancelled before its first step runs nothing.
        new.task.add_done_callback(give_back)

    async def _serve(self, accepted: _AcceptedConnection, connected: socket.socket) -> None:
        tls = {}
        if self._context is not None:
            tls = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": UNREAD_S}
        connection = accepted.connection
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, connected, ssl=self._context, **tls
            )
            await connection.lost.wait()
        except OSError:
            # The handshake failed, took too long or was aborted by the peer. TLS errors are OSErrors, too.
            self._metrics.http_connections_ended.labels("handshake").inc()

    def _note(self, accepted: _AcceptedConnection, waits: bool) -> None:
        waiting = self._waiting.setdefault(accepted.account, {})
        waiting.pop(accepted, None)
        if waits:
            waiting[accepted] = None
        elif not waiting:
            del self._waiting[accepted.account]

    def _make_room(self, account: Account) -> bool:
        """Return whether a new connection has room. This may end another connection."""
        victims = account
        if self._room.is_full_for(1):
            victims = max(self._waiting, key=self._room.of, default=account)
        elif self._room.shares(account, 1):
            return True
        return self._end_oldest(victims, "room")

    def _end_oldest(self, account: Account, why: str) -> bool:
        oldest = next(iter(self._waiting.get(account, ())), None)
        if oldest is None:
            return False
        self._metrics.http_connections_ended.labels(why).inc()
        self._note(oldest, waits=False)
        self._end(oldest)
        return True

    def _end(self, accepted: _AcceptedConnection) -> None:
        transport = accepted.connection.transport
        if transport is not None:
            transport.abort()
        elif accepted.task is not None:
            # The handshake is still running.
            accepted.task.cancel()

    def _report_no_room(self, error: OSError) -> None:
        """Make room for the next connection; log at a limited rate."""
        largest = max(self._waiting, key=self._room.of, default=None)
        if largest is None or not self._end_oldest(largest, "files"):
            self._metrics.http_connections_ended.labels("files").inc()
        now_s = asyncio.get_running_loop().time()
        if self._logged_s is None or now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            log.error(
                "cannot accept HTTP connections: %s; %d are open; trying again every %g s",
                error.strerror,
                self._room.held,
                RETRY_S,
            )
