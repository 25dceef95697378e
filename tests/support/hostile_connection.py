"""Connections that send any bytes: blocking sockets, bounded in time, that read only when asked.

Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK).
"""

import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from hpack import Encoder
from hyperframe.frame import Frame, SettingsFrame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GRPC, HTTP = "grpc", "http"

# A server that takes no more bytes for this long has shown what it does with them.
PATIENCE_S = 2.0
# The bytes of one write.
WRITE_BYTES = 1 << 18

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


def raw_frame(kind: int, flags: int, stream: int, payload: bytes = b"", claimed: int | None = None) -> bytes:
    """A frame as on the wire. Its header may claim another length than the payload has."""
    length = len(payload) if claimed is None else claimed
    return length.to_bytes(3) + bytes((kind & 0xFF, flags & 0xFF)) + stream.to_bytes(4) + payload


@dataclass
class Connection:
    """One socket of an attacker. `window` is the HTTP/2 window that each of its streams starts with."""

    socket: socket.socket
    endpoint: str
    next_stream: int = 1
    is_open: bool = True
    encoder: Encoder = field(default_factory=Encoder)
    is_read: bool = False

    def send(self, data: bytes, patience_s: float = PATIENCE_S) -> bool:
        """Write all, or as much as the server takes in time. Returns whether it took all."""
        until_s = time.monotonic() + patience_s
        view = memoryview(data)
        while view and self.is_open:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            self.socket.settimeout(left_s)
            try:
                view = view[self.socket.send(view[:WRITE_BYTES]) :]
            except TimeoutError:
                return False
            except OSError:
                self.is_open = False
        return self.is_open

    def frames(self, *frames: Frame) -> bool:
        """Write hyperframe's frames."""
        return self.send(b"".join(each.serialize() for each in frames))

    def read(self, most: int, patience_s: float = 0.05) -> int:
        """Read up to `most` bytes of the available ones, and discard them. Returns their number."""
        got = 0
        self.socket.settimeout(patience_s)
        with suppress(OSError):
            while got < most and (part := self.socket.recv(min(most - got, 1 << 16))):
                got += len(part)
        return got

    def stream(self) -> int:
        """Return the next stream of this connection."""
        self.next_stream += 2
        return self.next_stream - 2

    def headers(self, path: str, *more: tuple[str, str]) -> bytes:
        """Return the headers of a gRPC call. They use no dynamic table: any prefix of a flood stays valid."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "127.0.0.1"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *more,
        ]
        block: bytes = self.encoder.encode([(name, value, True) for name, value in fields])
        return block

    def close(self) -> None:
        self.is_open = False
        if self.is_read:
            # The reading thread has its own descriptor.
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self.socket.close()


@dataclass
class Attacker:
    """A caller with its own loopback address, and all its open connections."""

    ports: dict[str, int]
    address: str
    key: str = ""
    connections: list[Connection] = field(default_factory=list)

    def open(self, endpoint: str, window: int | None = None, *, reads: bool = False) -> Connection:
        """Open a connection. For HTTP/2, send the preface and SETTINGS.

        With `reads`, the server's SETTINGS are acknowledged and everything that it sends is read until it
        closes: a server holds back a caller that does neither. Raises: OSError if the server does not accept
        the connection.
        """
        made = socket.create_connection(
            ("127.0.0.1", self.ports[endpoint]), timeout=PATIENCE_S, source_address=(self.address, 0)
        )
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(made, endpoint)
        self.connections.append(connection)
        if endpoint == GRPC:
            settings = {} if window is None else {SettingsFrame.INITIAL_WINDOW_SIZE: window}
            connection.send(PREFACE + SettingsFrame(settings=settings).serialize())
        if reads:
            # The server has sent its SETTINGS before its first byte can be read.
            connection.read(1, PATIENCE_S)
            connection.frames(SettingsFrame(flags=["ACK"]))
            connection.is_read = True
            threading.Thread(target=_drain, args=(made.dup(),), daemon=True).start()
        return connection

    def current(self, endpoint: str) -> Connection:
        """Return the latest connection to an endpoint, or a new one if that has ended."""
        for each in reversed(self.connections):
            if each.endpoint == endpoint:
                return each if each.is_open else self.open(endpoint)
        return self.open(endpoint)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the headers with this caller's API key, if it has one."""
        return (("authorization", f"Bearer {self.key}"),) if self.key else ()

    def close(self) -> None:
        for each in self.connections:
            each.close()
        self.connections.clear()


def _drain(reading: socket.socket) -> None:
    """Read a socket until it ends. Another thread sets time limits on it for its writes."""
    with reading, suppress(OSError):
        while select.select((reading,), (), ()):
            with suppress(BlockingIOError, TimeoutError):
                if not reading.recv(1 << 20):
                    return
