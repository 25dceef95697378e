"""Which addresses a client's target has: as given, or as a name resolves to."""

import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from farrank_client.errors import Unavailable

# A name is looked up anew when a call comes and the last lookup is this old.
NAME_LOOKUP_S = 5.0


class Addresses(Protocol):
    """Where the replicas are."""

    def current(self) -> "Sequence[str] | Future[Sequence[str]]":
        """The addresses as known, or the first lookup while it goes on; that raises Unavailable."""


class GivenAddresses:
    """Addresses that do not change."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)

    def current(self) -> Sequence[str]:
        """Return them."""
        return self._addresses


class NamedAddresses:
    """All addresses of a name, looked up in a thread so that no call waits, but for the first.

    A lookup that fails leaves the addresses as they were.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._lock = threading.Lock()
        self._known: Sequence[str] = ()
        self._looked_up_s = float("-inf")
        self._lookup: Future[Sequence[str]] | None = None

    def current(self) -> "Sequence[str] | Future[Sequence[str]]":
        """Return what is known, and look up again where that is old."""
        with self._lock:
            if self._lookup is None and time.monotonic() - self._looked_up_s >= NAME_LOOKUP_S:
                self._lookup = Future()
                # No executor's thread: the interpreter would wait for that at its end.
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
            # Where nothing is known the next call asks again: it waits for its own retries.
            self._looked_up_s = time.monotonic() if self._known else float("-inf")
            self._lookup = None
        if error is None:
            lookup.set_result(found)
        else:
            lookup.set_exception(error)
