"""Around every method, at every door: calls are counted, and what failed becomes an error for its caller."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from farrank_runtimes.runtime import forget_locals
from farrank_server.errors import DeadlineExceeded, FarrankError, Internal
from farrank_server.metrics import Door, Metrics

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

# A caller's deadline passes before ours by its request's way here: who goes so shortly before was late.
LATE_S = 0.1


class Guard:
    """The one place that decides what the callers of a door are told when something fails."""

    def __init__(self, door: Door, metrics: Metrics, rankers: Collection[str], default_ranker: str) -> None:
        self._door = door
        self._metrics = metrics
        self._rankers = rankers
        self._default_ranker = default_ranker

    async def answer(
        self,
        method: str,
        request: Message | Exception,
        behave: Callable[[Any], Awaitable[Answer]],
        time_remaining: Callable[[], float | None] = lambda: None,
    ) -> Answer | FarrankError:
        """Have a request answered; return the answer, or the error that its caller is to be told.

        `request` is an error where what came is no request of the method, or could not be read.
        `time_remaining` gives the seconds to a deadline at which the door itself cancels, None where there is
        none.
        Raises: CancelledError alone.
        """
        started_s = time.perf_counter()
        ranker = self._ranker_label(request)
        code = grpc.StatusCode.OK
        self._metrics.in_flight.labels(self._door, method).inc()
        try:
            if isinstance(request, Exception):
                raise request
            return await behave(request)
        except asyncio.CancelledError:
            remaining_s = time_remaining()
            late = remaining_s is not None and remaining_s < LATE_S
            code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
            if late:
                self._count_failure(ranker, DeadlineExceeded("cancelled at the deadline"))
            else:
                self._metrics.cancellations.labels(self._door, ranker).inc()
            raise
        except FarrankError as error:
            code = error.code
            self._count_failure(ranker, error)
            # A call that waited is in a circle with its error. Without this its texts would stay until a full
            # collection, and those are rare here. gRPC keeps the last error until the next call comes.
            forget_locals(error)
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)
        except Exception as error:
            code = grpc.StatusCode.INTERNAL
            log.exception("%s failed", method)
            forget_locals(error)
            return Internal("the server failed; its log says why")
        finally:
            # After the answer is on its way, so that no caller waits for the counters.
            seconds = time.perf_counter() - started_s
            asyncio.get_running_loop().call_soon(self._count_call, method, ranker, code, seconds)

    def _count_call(self, method: str, ranker: str, code: grpc.StatusCode, seconds: float) -> None:
        door = self._door
        self._metrics.in_flight.labels(door, method).dec()
        self._metrics.requests.labels(door, method, ranker, code.name).inc()
        self._metrics.request_seconds.labels(door, method, ranker).observe(seconds)

    def _count_failure(self, ranker: str, error: FarrankError) -> None:
        """Count what was not the caller's mistake: admitted calls that were late, and all others refused."""
        if error.reason is not None:
            self._metrics.rejections.labels(self._door, ranker, error.reason).inc()
        elif isinstance(error, DeadlineExceeded):
            self._metrics.deadline_drops.labels(self._door, ranker, error.dropped_at).inc()

    def _ranker_label(self, request: object) -> str:
        """The ranker asked for; never a caller's own word, which could be a new one every time."""
        options = getattr(request, "options", None)
        if options is None:
            return ""
        name = options.ranker or self._default_ranker
        return name if name in self._rankers else "unknown"
