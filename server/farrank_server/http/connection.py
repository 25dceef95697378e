"""One HTTP connection: how long it may wait for its peer, and when and how it ends.

uvicorn's protocol reads requests and writes answers. Closing without notice would lose a request that is on
its way, so the last answer says `Connection: close`.
"""

import asyncio
import logging
import random
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from enum import Enum, auto
from typing import Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from farrank_calls.telemetry.line_rate import LineRate
from farrank_server.http.json_bodies import JSON, to_json
from farrank_server.http.request_reader import RequestReader, RequestRefused

log = logging.getLogger(__name__)

# As in gRPC, the maximum age varies by up to a tenth: connections that began together do not end together.
AGE_JITTER = 0.1

# Time limit from the first byte of a request to the end of its headers.
HEADERS_S = 10.0

# Longer than clients keep an idle or unused connection: if the server closed first, some of their calls would
# fail.
KEEP_ALIVE_S = 75

# Time limit for a peer to read the data that exceeds the buffers, and the end of its last answer.
UNREAD_S = 60.0

# A connection without a request may send one for this long after the endpoint stopped accepting.
LAST_REQUEST_S = 0.5

# The server reads and drops the rest of a request that it refuses early: at most this many times
# `max_request_bytes`, for at most this long. Closing instead would reset the connection, and a caller that is
# still sending would never see its answer.
REFUSED_BODIES = 4
DROP_S = 30.0


class Phase(Enum):
    """The event that a connection waits for."""

    HEADERS = auto()
    CALL = auto()
    NEXT_REQUEST = auto()
    LAST_BYTES = auto()

    @property
    def max_s(self) -> float | None:
        """The time limit of the phase; None if the call's own limits apply."""
        times_s = {
            Phase.HEADERS: HEADERS_S,
            Phase.NEXT_REQUEST: KEEP_ALIVE_S,
            Phase.LAST_BYTES: UNREAD_S,
        }
        return times_s.get(self)

    @property
    def is_for_request(self) -> bool:
        """Whether closing the connection in this phase loses no call."""
        return self in (Phase.HEADERS, Phase.NEXT_REQUEST)


class Rules:
    """The rules for all connections of an endpoint. Connections older than `max_age_s` seconds end."""

    def __init__(self, max_age_s: float | None, max_request_bytes: int) -> None:
        self.is_draining = False
        self.count_end: Callable[[str], object] = lambda why: None
        self.line_rate = LineRate()
        self.max_age_s = max_age_s
        self.max_dropped_bytes = REFUSED_BODIES * max_request_bytes


class Connection(H11Protocol):
    """uvicorn's connection, which ends with `Connection: close` once it is old or the endpoint drains."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, rules: Rules) -> None:
        super().__init__(config, server_state, {})
        self._rules = rules
        self.conn = self._reader = RequestReader()
        self._application: Any = self.app
        self.app = self._answer
        age_s = rules.max_age_s
        self._old_at_s = None if age_s is None else self.loop.time() + age_s * _jitter()
        self._phase = Phase.CALL
        self._timer: asyncio.TimerHandle | None = None
        # Set when the connection has ended.
        self.lost = asyncio.Event()
        # Called when the connection begins to wait for a request, and when it stops waiting.
        self.on_wait: Callable[[bool], None] = lambda waits: None

    @property
    def is_idle(self) -> bool:
        """Whether the connection has had its answer and has sent nothing since."""
        return self._phase is Phase.NEXT_REQUEST and self.cycle is not None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start the time limit for headers."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read the bytes and start the time limit of the new phase."""
        super().data_received(data)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Say why a request is refused, and end the connection: the start of the next request is unknown."""
        if self.transport.is_closing():
            return
        error = self._reader.refusal
        assert error is not None
        self._rules.count_end("malformed")
        why = str(error) if isinstance(error, RequestRefused) else "is not HTTP/1.1"
        if (left_out := self._rules.line_rate.left_out(why)) is not None:
            log.info("an HTTP request was refused: %s (%d more in the last minute)", why, left_out)
        # In other states an answer has begun already.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            message = f"request: {str(error)[:200]}"
            text = to_json({"message": message, "detail": message})
            headers = [("Content-Type", JSON), ("Content-Length", str(len(text))), ("Connection", "close")]
            answer = h11.Response(status_code=error.error_status_hint, headers=headers)
            # The answer to HEAD has the headers alone.
            body = b"" if self._reader.is_for_headers_alone else text
            for each in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(each) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            # With TLS the connection lives on until the peer agrees to its end; its call ends now.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request, of which bytes may have arrived already."""
        super().on_response_complete()
        # This class limits the phase's time. uvicorn's own timer stops at the first byte that arrives.
        self._unset_keepalive_if_required()
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop the timer and note that the connection has ended."""
        try:
            super().connection_lost(error)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self.lost.set()

    def _watch(self) -> None:
        """Start the time limit of a new phase; a phase that continues keeps its limit."""
        phase = self._now()
        if phase is self._phase:
            return
        before, self._phase = self._phase, phase
        if self._timer is not None:
            self._timer.cancel()
        max_s = phase.max_s
        self._timer = None if max_s is None else self.loop.call_later(max_s, self._is_late, phase)
        if before.is_for_request or phase.is_for_request:
            self.on_wait(phase.is_for_request)

    def _now(self) -> Phase:
        if self.transport.is_closing():
            return Phase.LAST_BYTES
        if self.cycle is not None and not self.cycle.response_complete:
            return Phase.CALL
        return Phase.HEADERS if self.conn.trailing_data[0] else Phase.NEXT_REQUEST

    def _is_late(self, phase: Phase) -> None:
        if phase is Phase.NEXT_REQUEST and not self.transport.get_write_buffer_size():
            self.transport.close()
            return
        if phase is Phase.HEADERS:
            self._rules.count_end("headers")
        # `close` would wait for a peer that does not read.
        self.transport.abort()

    def shutdown(self) -> None:
        """End after the answer in flight, or at once if idle. A new connection may still send its request."""
        if self.is_idle or (self.cycle is not None and not self.cycle.response_complete):
            super().shutdown()
        else:
            self.loop.call_later(LAST_REQUEST_S, self._close_unless_answering)

    def _close_unless_answering(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _must_close(self) -> bool:
        is_old = self._old_at_s is not None and self.loop.time() >= self._old_at_s
        return is_old or self._rules.is_draining

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = self.cycle

        async def send_on(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                # A caller that waits for 100 Continue, and is refused, sends the body or the next request;
                # the server cannot know which.
                is_unasked = cycle.more_body and cycle.waiting_for_100_continue
                if is_unasked or self._must_close():
                    message = {**message, "headers": [*message.get("headers", ()), CLOSE_HEADER]}
                cycle.keep_alive = cycle.keep_alive and not is_unasked
            elif cycle.more_body and cycle.keep_alive and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await self._drop_rest(receive)
                message = {"type": "http.response.body"}
            if self.flow.write_paused:
                await self._wait_for_peer()
            await send(message)

        await self._application(scope, receive, send_on)

    async def _wait_for_peer(self) -> None:
        """Wait until the peer has read the buffered data; end the connection if it does not in time."""
        try:
            async with asyncio.timeout(UNREAD_S):
                await self.flow.drain()
        except TimeoutError:
            self.transport.abort()

    async def _drop_rest(self, receive: Receive) -> None:
        """Read the rest of a request that is answered already; end the connection if the rest is too long."""
        left = self._rules.max_dropped_bytes
        # Cancelled when the server ends; the answer is then complete except for its end.
        with suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(DROP_S):
                while left >= 0:
                    message = await receive()
                    if not message.get("more_body", False):
                        return
                    left -= len(message["body"])
        self.cycle.keep_alive = False


def _jitter() -> float:
    return 1 + random.uniform(-AGE_JITTER, AGE_JITTER)
