"""HTTP/2 written by hand, for a caller that no client library supports: it never makes room for an answer.

Source: RFC 9113 (frames), RFC 7541 (headers, here literal ones without Huffman's code).
"""

import asyncio
import struct
from contextlib import suppress
from dataclasses import dataclass

DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
INITIAL_WINDOW_SIZE = 4
FRAME_BYTES = 16_384

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127
    return bytes([len(data)]) + data


@dataclass
class UnreadAnswers:
    """A connection with calls whose answers have no room for a single byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    streams: int = 0
    room: int = 65_535
    room_of_a_stream: int = 65_535

    @classmethod
    async def open(cls, port: int, address: str = "127.0.0.1") -> "UnreadAnswers":
        """Connect from an address of the loopback network, by which the server distinguishes callers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        writer.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0)))
        return cls(reader, writer)

    async def call(self, path: str, message: bytes) -> int:
        """Send a unary call as far as the server makes room for it. Returns its stream."""
        stream = self.begin(path)
        left = b"\x00" + struct.pack(">I", len(message)) + message
        room = self.room_of_a_stream
        while left:
            while min(room, self.room) == 0:
                room += await self._more_room(stream)
            part = left[: min(FRAME_BYTES, room, self.room)]
            left = left[len(part) :]
            room -= len(part)
            self.room -= len(part)
            self.writer.write(frame(DATA, 0 if left else END_STREAM, stream, part))
            await self.writer.drain()
        return stream

    def begin(self, path: str) -> int:
        """Begin a call and send no request. Returns its stream."""
        self.streams += 1
        stream = 2 * self.streams - 1
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "127.0.0.1",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(b"\x00" + _literal(name) + _literal(value) for name, value in fields.items())
        self.writer.write(frame(HEADERS, END_HEADERS, stream, block))
        return stream

    async def _more_room(self, wanted: int) -> int:
        """Read a frame. Returns by how much the stream may send more."""
        kind, flags, stream, payload = await self.frame()
        if kind == SETTINGS and not flags & ACK:
            self.writer.write(frame(SETTINGS, ACK, 0))
            for at in range(0, len(payload), 6):
                key, value = struct.unpack_from(">HI", payload, at)
                if key == INITIAL_WINDOW_SIZE:
                    more = value - self.room_of_a_stream
                    self.room_of_a_stream = value
                    return int(more)
        if kind == WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if stream == 0:
                self.room += more
            elif stream == wanted:
                return int(more)
        return 0

    async def frame(self) -> tuple[int, int, int, bytes]:
        """Read a frame: kind, flags, stream, payload."""
        head = await self.reader.readexactly(9)
        length = int.from_bytes(head[:3])
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        return kind, flags, stream, await self.reader.readexactly(length)

    async def read_ends(self, ends: list[int]) -> None:
        """Append the stream of each call that ends, until the connection closes."""
        with suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while True:
                kind, flags, stream, _ = await self.frame()
                if kind == HEADERS and flags & END_STREAM:
                    ends.append(stream)

    async def is_ended(self) -> bool:
        """Read until the server closes the connection."""
        try:
            while True:
                await self.frame()
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return True

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()
