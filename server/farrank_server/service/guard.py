"""Wraps every method at every endpoint: identifies callers, counts and logs calls, reports failures."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import (
    DeadlineExceeded,
    FarrankError,
    Internal,
    RateExceeded,
    Reason,
    Unauthenticated,
    redacted,
)
from farrank_calls.telemetry.call_record import CallRecord, Facts
from farrank_calls.telemetry.line_rate import LineRate
from farrank_runtimes.runtime import forget_locals
from farrank_server.access.callers import Caller, Entry, by_address
from farrank_server.access.keys import Header, Keys
from farrank_server.engine.versions import split_version
from farrank_server.metrics import Endpoint, Metrics

if TYPE_CHECKING:
    from farrank_calls.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

RERANK_SERVICE = pb.DESCRIPTOR.services_by_name["RerankService"].full_name

# The log with one line per call, described in docs/how-to/logs-and-traces.md.
calls_log = logging.getLogger("farrank.calls")

Answer = TypeVar("Answer")

# A caller's deadline passes earlier than the server's copy of it, by the request's travel time. A call that
# is cancelled this shortly before its deadline counts as late.
LATE_S = 0.1

# Log levels of calls that fail. The other codes are the caller's own doing and have level INFO.
_LEVELS = {
    grpc.StatusCode.INTERNAL: logging.ERROR,
    grpc.StatusCode.UNAVAILABLE: logging.WARNING,
    grpc.StatusCode.RESOURCE_EXHAUSTED: logging.WARNING,
    grpc.StatusCode.DEADLINE_EXCEEDED: logging.WARNING,
}


class Guard:
    """Decides at an endpoint who may call, and which error a caller gets when something fails.

    `rankers` are the names of the rankers that are loaded now. Without `keys`, anyone may call. Calls that
    succeed are logged with the probability `ok_sample`. All others are logged up to a number per minute for
    each caller, code and reason.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        metrics: Metrics,
        rankers: Collection[str],
        default_ranker: str,
        keys: Keys | None = None,
        ok_sample: float = 0.0,
        tracing: Tracing | None = None,
    ) -> None:
        self._endpoint = endpoint
        self.metrics = metrics
        self._rankers, self._default_ranker = rankers, default_ranker
        self._keys = keys
        self.ok_sample = ok_sample
        self._tracing = tracing
        self._line_rate = LineRate()

    def enter(self, record: CallRecord, header: Header, peer: str) -> Entry:
        """Identify the caller of a call; to be called once per call, before its request is read.

        `peer` is the other end of the connection (as `peer_name`), which identifies callers without keys. A
        refusal is in the result; `answer` raises it like any other error.
        """
        if self._tracing is not None:
            record.trace = self._tracing.begin(header)
        entry = by_address(peer) if self._keys is None else self._keys.enter(header)
        entry.record, record.account = record, entry.caller.account
        return entry

    async def answer(
        self,
        method: str,
        entry: Entry,
        request: Message | BaseException | None,
        handle: Callable[[Any], Awaitable[Answer]],
        time_remaining: Callable[[], float | None] = lambda: None,
    ) -> Answer | FarrankError:
        """Run a method on a request; return its answer, or the error for its caller.

        `entry` is the result of `enter`; a caller refused there gets that refusal. `request` is an error if
        the bytes are not a request of the method, or could not be read (CancelledError: the caller
        disconnected), and None if the method needs no request. `time_remaining` gives the seconds to a
        deadline at which the endpoint itself cancels, or None if there is none.
        Raises: CancelledError only.
        """
        started_s = time.perf_counter()
        record = entry.record
        ranker = self._ranker_label(request, entry.caller)
        code = grpc.StatusCode.OK
        self.metrics.in_flight.labels(self._endpoint, method).inc()
        try:
            if entry.refusal is not None:
                raise entry.refusal
            if isinstance(request, BaseException):
                raise request
            return await handle(request)
        except asyncio.CancelledError:
            remaining_s = time_remaining()
            late = remaining_s is not None and remaining_s < LATE_S
            code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
            if late:
                error = DeadlineExceeded("cancelled at the deadline")
                record.failed(error)
                self._count_failure(ranker, entry, error)
            else:
                self.metrics.cancellations.labels(self._endpoint, ranker).inc()
            raise
        except FarrankError as error:
            code = error.code
            record.failed(error)
            self._count_failure(ranker, entry, error)
            # A call that waited forms a reference cycle with its error. Without this, its texts would stay
            # until a full collection, which is rare here. gRPC keeps the last error until the next call.
            forget_locals(error)
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)
        except Exception as error:
            code = grpc.StatusCode.INTERNAL
            log.error("%s failed: %s", method, redacted(error))
            forget_locals(error)
            return Internal("the server failed; its log says why")
        finally:
            # Count after the answer is on its way, so that no caller waits for the counters.
            seconds = time.perf_counter() - started_s
            asyncio.get_running_loop().call_soon(self._count_call, entry, method, ranker, code, seconds)

    def _count_call(
        self, entry: Entry, method: str, ranker: str, code: grpc.StatusCode, seconds: float
    ) -> None:
        record, endpoint, key = entry.record, self._endpoint, entry.caller.name
        self.metrics.in_flight.labels(endpoint, method).dec()
        self.metrics.requests.labels(endpoint, method, ranker, code.name).inc()
        self.metrics.request_seconds.labels(endpoint, method, ranker).observe(seconds, record.exemplar())
        if entry.role:
            self.metrics.version_requests.labels(ranker, entry.role, code.name).inc()
            self.metrics.version_seconds.labels(ranker, entry.role).observe(seconds, record.exemplar())
        if key:
            self.metrics.key_requests.labels(key, code.name).inc()
        left_out: int | None = 0
        if code is not grpc.StatusCode.OK:
            left_out = self._line_rate.left_out((entry.caller.account, code, record.facts.get("reason")))
        elif random.random() >= self.ok_sample:
            left_out = None
        is_logged = left_out is not None
        if not is_logged and record.trace is None:
            return
        facts: Facts = {
            "door": str(endpoint),
            "method": method,
            "code": code.name,
            "seconds": round(seconds, 6),
        }
        named = {name: value for name, value in (("ranker", ranker), ("key", key)) if value}
        if record.trace is not None:
            name = f"{RERANK_SERVICE}/{method}"
            record.trace.end(name, code, {**facts, **named, **record.facts, "request_id": record.request_id})
        if not is_logged:
            return
        more = {"left_out": left_out} if left_out else {}
        calls_log.log(
            _LEVELS.get(code, logging.INFO),
            "call",
            extra={"fields": {**facts, **named, **record.facts, **more}, "call": record},
        )

    def _count_failure(self, ranker: str, entry: Entry, error: FarrankError) -> None:
        """Count the reason of a refusal (access or capacity), or that the call was late."""
        if error.reason is not None:
            self.metrics.rejections.labels(self._endpoint, ranker, error.reason).inc()
            if error.reason is Reason.SHARE and entry.caller.name:
                self.metrics.key_rejections.labels(entry.caller.name, error.reason).inc()
        elif isinstance(error, DeadlineExceeded):
            self.metrics.deadline_drops.labels(self._endpoint, ranker, error.dropped_at).inc()
        elif isinstance(error, RateExceeded):
            self.metrics.key_rejections.labels(entry.caller.name, error.limit).inc()
        elif isinstance(error, Unauthenticated):
            self.metrics.unauthenticated.labels(self._endpoint, error.why).inc()

    def _ranker_label(self, request: object, caller: Caller) -> str:
        """The ranker asked for, or "unknown": a name from a caller would make a new label value each time."""
        options = getattr(request, "options", None)
        if options is None:
            return ""
        rankers = dict.fromkeys((self._default_ranker, *self._rankers))
        name, _ = split_version(options.ranker, rankers)
        name = name or caller.default_ranker(rankers)
        return name if name in rankers else "unknown"
