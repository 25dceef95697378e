"""The addresses of a client's target: given ones, or those of a name."""

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from farrank_client.errors import Unavailable

# A call starts a new lookup if the last one is at least this old.
NAME_LOOKUP_S = 5.0


class Addresses(Protocol):
    """The addresses of replicas."""

    def current(self) -> "Sequence[str] | Future[Sequence[str]]":
        """Return the known addresses; if none are known, the pending lookup, which may raise Unavailable."""


class GivenAddresses:
    """Addresses that do not change."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)

    def current(self) -> Sequence[str]:
        """Return the given addresses."""
        return self._addresses


class NamedAddresses:
    """All addresses of a name, looked up in a thread so that only the first call waits.

    A lookup that fails leaves the addresses as they were.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._lock = threading.Lock()
        self._known: Sequence[str] = ()
        self._looked_up_s = float("-inf")
        self._lookup: Future[Sequence[str]] | None = None

    def current(self) -> "Sequence[str] | Future[Sequence[str]]":
        """Return the known addresses, and start a new lookup if they are old."""
        with self._lock:
            if self._lookup is None and time.monotonic() - self._looked_up_s >= NAME_LOOKUP_S:
                self._lookup = Future()
                # Not an executor's thread: the interpreter would wait for it at exit.
                threading.Thread(target=self._look_up, args=(self._lookup,), daemon=True).start()
            if self._known or self._lookup is None:
                return self._known
            return self._lookup

    def _look_up(self, lookup: "Future[Sequence[str]]") -> None:
        error: Unavailable | None = None
        found: Sequence[str] = ()
        try:
            infos = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            hosts = {str(info[4][0]) for info in infos}
            found = sorted(
                f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}" for host in hosts
            )
        except OSError as failed:
            error = Unavailable(
                f"cannot connect to {self._host}: the name has no address ({failed.strerror})"
            )
            error.reached_server = False
        with self._lock:
            self._known = found or self._known
            # While no address is known the next call looks up again; its retries set the pace.
            self._looked_up_s = time.monotonic() if self._known else float("-inf")
            self._lookup = None
        if error is None:
            lookup.set_result(found)
        else:
            lookup.set_exception(error)
