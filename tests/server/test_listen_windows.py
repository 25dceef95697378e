"""The bytes of a request that gRPC's core accepts before the server has room for them: its window."""

import asyncio
import math
import socket
from collections.abc import Iterator
from typing import Any

import grpc
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from farrank_server.config.schema import LimitsConfig, ListenConfig
from farrank_server.listen import WINDOW_BYTES, GrpcListener
from support.hostile_connection import PREFACE
from support.waiting import until

MESSAGE_BYTES = 20 * 10**6
FRAME_BYTES = 16_384
TIMEOUT_S = 60.0


class Sender:
    """A caller that sends one message as far as the server's windows allow."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._of_connection = self._of_stream = self._initial = 65_535
        self._left = b"\0" + MESSAGE_BYTES.to_bytes(4) + bytes(MESSAGE_BYTES)
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/test/Call",
            ":authority": "test",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        self._socket.sendall(PREFACE + SettingsFrame(0).serialize())
        block = Encoder().encode(list(fields.items()))
        self._socket.sendall(HeadersFrame(1, block, flags=["END_HEADERS"]).serialize())
        self.sent = 0

    def close(self) -> None:
        self._socket.close()

    def send(self, pings: float = math.inf) -> None:
        """Send until all is sent, or until the windows stay closed while the server answers some pings."""
        answers = 0
        while answers < pings and self._left:
            if most := min(self._of_connection, self._of_stream, FRAME_BYTES):
                piece, self._left = self._left[:most], self._left[most:]
                self._socket.sendall(DataFrame(1, piece).serialize())
                self._of_connection -= len(piece)
                self._of_stream -= len(piece)
                self.sent += len(piece)
                answers = 0
                continue
            self._socket.sendall(PingFrame(0, b"anything").serialize())
            for frame in self._frames():
                self._take(frame)
                if isinstance(frame, PingFrame) and "ACK" in frame.flags:
                    answers += 1
                    break

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, WindowUpdateFrame):
            if frame.stream_id:
                self._of_stream += frame.window_increment
            else:
                self._of_connection += frame.window_increment
        elif isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            initial = frame.settings.get(SettingsFrame.INITIAL_WINDOW_SIZE, self._initial)
            self._of_stream += initial - self._initial
            self._initial = initial
            self._socket.sendall(SettingsFrame(0, flags=["ACK"]).serialize())
        elif isinstance(frame, PingFrame) and "ACK" not in frame.flags:
            # gRPC measures a connection's bandwidth with these.
            self._socket.sendall(PingFrame(0, frame.opaque_data, flags=["ACK"]).serialize())

    def _frames(self) -> Iterator[Frame]:
        while True:
            frame, length = Frame.parse_frame_header(memoryview(self._read(9)))
            frame.parse_body(memoryview(self._read(length)))
            yield frame

    def _read(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            more = self._socket.recv(size - len(got))
            assert more, "the server ended the connection"
            got += more
        return got


async def test_a_request_that_waits_for_room_takes_no_more_than_its_window() -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    read: list[int] = []

    async def call(_: object, context: Any) -> bytes:
        begun.set()
        await go.wait()
        read.append(len(await context.read()))
        return b""

    limits = LimitsConfig(max_request_bytes=MESSAGE_BYTES)
    listener = GrpcListener(ListenConfig(port=0, metrics_port=None), limits)
    handler: Any = grpc.stream_unary_rpc_method_handler(call)
    await listener.open(grpc.method_handlers_generic_handler("test", {"Call": handler}))
    sender = await asyncio.to_thread(Sender, listener.port)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await begun.wait()
            await asyncio.to_thread(sender.send, pings=10)
            unread = sender.sent
            # With room for it, the rest is accepted.
            go.set()
            await asyncio.to_thread(sender.send)
            await until(lambda: read == [MESSAGE_BYTES])
    finally:
        sender.close()
        await listener.close(0)
    assert unread <= 2 * WINDOW_BYTES
