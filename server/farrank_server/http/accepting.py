"""Accepts HTTP connections within bounds: of all, of each caller, and of the process's open files.

asyncio's own server takes every connection, gives a handshake a minute, and logs a traceback for each that it
cannot take for want of files.
"""

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Callable

from farrank_server.access.callers import account_of_peer
from farrank_server.batching.fair_order import Account
from farrank_server.engine.admission.shared_room import SharedRoom
from farrank_server.http.connection import Connection
from farrank_server.metrics import Metrics
from farrank_server.service.connections import peer_name

log = logging.getLogger(__name__)

# All connections; fewer where the process may have few files open: half of those belong to the rest of it.
MOST_CONNECTIONS = 4096
SHARE_OF_FILES = 0.5

# How long a TLS handshake may take, and how long a peer may take to agree to the end of a connection.
HANDSHAKE_S = 10.0
TLS_END_S = 5.0

# After a failure to accept for want of files or memory, and between two lines of the log about it.
RETRY_S = 0.2
LOG_EVERY_S = 60.0

# Accepted at once before others have a turn.
AT_ONCE = 64

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Accepted:
    """An accepted connection, from its handshake to its end."""

    def __init__(self, account: Account, connection: Connection) -> None:
        self.account = account
        self.connection = connection
        self.task: asyncio.Task[None] | None = None


class Acceptor:
    """Stands for a server of asyncio's: accepts from a listening socket until closed.

    Without room a new connection takes the place of the one of its caller that has waited longest for a
    request to be complete; where there is none, it is ended at once. Belongs to the event loop.
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
        few = MOST_CONNECTIONS if files == resource.RLIM_INFINITY else int(files * SHARE_OF_FILES)
        self._room = SharedRoom(min(MOST_CONNECTIONS, few))
        # By caller, those that are in no call, the longest waiting first.
        self._waiting: dict[Account, dict[_Accepted, None]] = {}
        self._all: set[_Accepted] = set()
        self._logged_s: float | None = None
        metrics.http_connections.set_function(lambda: self._room.held)
        metrics.http_connections_limit.set(self._room.size)
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accept no more; what is connected stays."""
        self._accepting.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing is accepted any more."""
        await asyncio.wait((self._accepting,))

    def abort(self) -> None:
        """End every connection that is left."""
        for each in list(self._all):
            self._end(each)

    async def _accept(self) -> None:
        loop, taken = asyncio.get_running_loop(), 0
        while True:
            try:
                accepted, address = await loop.sock_accept(self._listening)
            except OSError as error:
                # Others: a connection that ended before it was taken.
                if error.errno in _NO_ROOM:
                    self._report_no_room(error)
                    await asyncio.sleep(RETRY_S)
                continue
            self._take(accepted, address)
            # One that waits is taken without a turn of the loop.
            taken += 1
            if taken % AT_ONCE == 0:
                await asyncio.sleep(0)

    def _take(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        account = account_of_peer(peer_name(*address[:2]))
        if not self._make_room(account):
            self._metrics.http_connections_ended.labels("refused").inc()
            accepted.close()
            return
        new = _Accepted(account, self._connection())
        new.connection.on_wait = lambda waits: self._note(new, waits)
        self._room.take(1, account)
        self._all.add(new)
        self._note(new, waits=True)
        new.task = asyncio.create_task(self._serve(new, accepted))

    async def _serve(self, accepted: _Accepted, connected: socket.socket) -> None:
        tls = {}
        if self._context is not None:
            tls = {"ssl_handshake_timeout": HANDSHAKE_S, "ssl_shutdown_timeout": TLS_END_S}
        connection = accepted.connection
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, connected, ssl=self._context, **tls
            )
            await connection.lost.wait()
        except OSError:
            # Failed, late or given up by its caller; a failure of TLS is an OSError, too.
            self._metrics.http_connections_ended.labels("handshake").inc()
        finally:
            self._room.take(-1, accepted.account)
            self._all.discard(accepted)
            self._note(accepted, waits=False)
            connected.close()

    def _note(self, accepted: _Accepted, waits: bool) -> None:
        waiting = self._waiting.setdefault(accepted.account, {})
        waiting.pop(accepted, None)
        if waits:
            waiting[accepted] = None
        elif not waiting:
            del self._waiting[accepted.account]

    def _make_room(self, account: Account) -> bool:
        """Say whether there is room for a connection, which may have been made by ending another one."""
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

    def _end(self, accepted: _Accepted) -> None:
        transport = accepted.connection.transport
        if transport is not None:
            transport.abort()
        elif accepted.task is not None:
            # In its handshake.
            accepted.task.cancel()

    def _report_no_room(self, error: OSError) -> None:
        """Make room for the next one, and log it, rarely."""
        largest = max(self._waiting, key=self._room.of, default=None)
        if largest is None or not self._end_oldest(largest, "files"):
            self._metrics.http_connections_ended.labels("files").inc()
        now_s = asyncio.get_running_loop().time()
        if self._logged_s is None or now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            log.error(
                "HTTP connections cannot be accepted: %s; %d are open, tried again every %g s",
                error.strerror,
                self._room.held,
                RETRY_S,
            )
