"""One HTTP connection: when it ends, and that its caller learns so from an answer.

uvicorn's protocol reads requests and writes answers. A connection that just closes loses the request that is
on its way, so the last answer says `Connection: close`.
"""

import asyncio
import random
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

# As gRPC does, the age differs by up to a tenth: connections that began together do not end together.
AGE_JITTER = 0.1

# A connection without a request may send one for this long after the endpoint stopped accepting.
LAST_REQUEST_S = 0.5

# The server reads and drops the rest of a request that it refuses early: at most this many times
# `max_request_bytes`, for at most this long. Closing instead would reset the connection, and a caller that is
# still sending would never see its answer.
REFUSED_BODIES = 4
DROP_S = 30.0


class Rules:
    """What holds for all connections of an endpoint. Connections older than `max_age_s` seconds end."""

    def __init__(self, max_age_s: float | None, max_request_bytes: int) -> None:
        self.is_draining = False
        self.max_age_s = max_age_s
        self.most_dropped_bytes = REFUSED_BODIES * max_request_bytes


class Connection(H11Protocol):
    """uvicorn's connection, which ends with `Connection: close` once it is old or the endpoint drains."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, rules: Rules) -> None:
        super().__init__(config, server_state, {})
        self._rules = rules
        self._application: Any = self.app
        self.app = self._answer
        age_s = rules.max_age_s
        self._old_at_s = None if age_s is None else self.loop.time() + age_s * _jitter()

    @property
    def is_idle(self) -> bool:
        """Whether it had its answer and sent nothing since."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        return is_answered and not self.conn.trailing_data[0]

    def shutdown(self) -> None:
        """End with the answer in flight; at once if idle. A new connection may still send its request."""
        if self.is_idle or (self.cycle is not None and not self.cycle.response_complete):
            super().shutdown()
        else:
            self.loop.call_later(LAST_REQUEST_S, self._close_unless_answering)

    def _close_unless_answering(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _ends_now(self) -> bool:
        is_old = self._old_at_s is not None and self.loop.time() >= self._old_at_s
        return is_old or self._rules.is_draining

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = self.cycle

        async def send_on(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                # A caller that waits for 100 Continue, and is refused, sends the body or the next request;
                # the server cannot know which.
                is_unasked = cycle.more_body and cycle.waiting_for_100_continue
                if is_unasked or self._ends_now():
                    message = {**message, "headers": [*message.get("headers", ()), CLOSE_HEADER]}
                cycle.keep_alive = cycle.keep_alive and not is_unasked
            elif cycle.more_body and cycle.keep_alive and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await self._drop_rest(receive)
                message = {"type": "http.response.body"}
            await send(message)

        await self._application(scope, receive, send_on)

    async def _drop_rest(self, receive: Receive) -> None:
        """Read the rest of a request that has its answer; if that is too much, end the connection."""
        left = self._rules.most_dropped_bytes
        # Cancelled: the server ends, and the answer is complete but for its end.
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
