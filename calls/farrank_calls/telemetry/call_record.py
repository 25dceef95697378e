"""The record of one call, which all stages share: its id, account, trace and log line's facts.

A log line contains no words of a caller: no query, no document, no name or id from a request, and no error
message, which may quote them. The only exception is a valid request id, so that the caller's calls can be
found.
"""

import random
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import grpc
from google.protobuf.message import Message

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import DeadlineExceeded, FarrankError, RateExceeded, Unauthenticated
from farrank_calls.fairness.fair_order import NOBODY, Account

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext


# Numbers, and words that Farrank defines.
Facts = Mapping[str, str | int | float]

# The field in which a caller sends an id and the answer returns it: gRPC's metadata, HTTP's headers.
REQUEST_ID = "x-request-id"

# With a trace id next to it, an OpenMetrics exemplar has no room for more characters.
MAX_ID_CHARACTERS = 64

_ID = re.compile(rf"[A-Za-z0-9._:/+=@-]{{1,{MAX_ID_CHARACTERS}}}")


@dataclass(slots=True, eq=False)
class TracedBatch:
    """A batch that ran on the device with inputs of traced calls. Times are of `time.monotonic`."""

    start_s: float
    end_s: float
    facts: Facts
    traces: Sequence["Trace"]
    span_context: "SpanContext | None" = None


class Trace(Protocol):
    """The trace of one sampled call; times are of `time.monotonic`."""

    trace_id: str
    span_context: "SpanContext"

    def step(
        self, name: str, start_s: float, end_s: float, facts: Facts, batch: TracedBatch | None = None
    ) -> None:
        """Record a finished stage, and the batch that it was part of. Any thread may call it."""
        ...

    def stage(self, name: str, facts: Facts) -> AbstractContextManager[None]:
        """Open a span around a stage that calls other processes, which continue in it."""
        ...

    def traceparent(self) -> str:
        """The context of the current span in W3C format."""
        ...

    def end(self, name: str, code: grpc.StatusCode, facts: Facts) -> None:
        """Record how the call ended, and send all of its spans."""
        ...


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call, from its first header to its log line. Every stage gets it as a parameter.

    `account` is charged for the call's work. `facts` are the values in its log line in addition to code and
    time. `trace` is None unless the call is traced. Belongs to the event loop, except for `step`.
    """

    request_id: str
    facts: dict[str, str | int | float] = field(default_factory=dict)
    trace: Trace | None = None
    account: Account = NOBODY

    def exemplar(self) -> dict[str, str]:
        """The exemplar labels by which a sample of a histogram leads to this call."""
        if self.trace is not None:
            return {"request_id": self.request_id, "trace_id": self.trace.trace_id}
        return {"request_id": self.request_id} if self.request_id else {}

    def step(self, name: str, start_s: float, end_s: float, **facts: str | int | float) -> None:
        """Record a finished stage. Times are of `time.monotonic`. Any thread may call it."""
        if self.trace is not None:
            self.trace.step(name, start_s, end_s, facts)

    def stage(self, name: str, **facts: str | int | float) -> AbstractContextManager[None]:
        """Mark a stage that calls other processes, which continue its trace."""
        return nullcontext() if self.trace is None else self.trace.stage(name, facts)

    def failed(self, error: FarrankError) -> None:
        """Record why the call failed, in Farrank's own words."""
        reason = error.reason
        if reason is None and isinstance(error, DeadlineExceeded):
            self.facts["late_in"] = str(error.dropped_at)
        elif isinstance(error, RateExceeded):
            self.facts["reason"] = error.limit
        elif isinstance(error, Unauthenticated):
            self.facts["reason"] = error.why
        elif reason is not None:
            self.facts["reason"] = str(reason)
        if field_name := _field_of(error.message):
            self.facts["field"] = field_name


# The record of work that belongs to no call. Nothing is recorded in it.
NO_CALL = CallRecord("")

# For the log alone: a line of any module names the call in whose context it is written. Stages get the
# record as a parameter.
_logged: ContextVar[CallRecord] = ContextVar("farrank_call", default=NO_CALL)


def begin(given_id: str | None) -> CallRecord:
    """Begin the record of a call, in the context in which the call is answered.

    The caller's id is used as it is if it is fit for a log: 1 to 64 letters, digits and ._:/+=@- of ASCII.
    Otherwise a new id is made.
    """
    record = CallRecord(
        given_id if given_id and _ID.fullmatch(given_id) else f"{random.getrandbits(128):032x}"
    )
    _logged.set(record)
    return record


def logged_call() -> CallRecord:
    """The call that a line of the log belongs to; `NO_CALL` outside of calls."""
    return _logged.get()


def _names_of(message: type[Message]) -> set[str]:
    return {each.name for each in message.DESCRIPTOR.fields}


# An error message begins with the name of the wrong field. In JSON that name may come from the caller: a name
# that is not one of these is not logged.
_OURS = frozenset(
    {"request", "model", "texts", "top_k", "max_chunks_per_doc", "max_tokens_per_doc", "relevant_spans"}
).union(
    *(
        _names_of(each)
        for each in (pb.RerankRequest, pb.SearchAndRerankRequest, pb.RerankOptions, pb.Document)
    )
)
_FIELD = re.compile(r"[a-z_]+(\[\d{1,9}\])?(\.[a-z_]+)*")


def _field_of(message: str) -> str | None:
    name, colon, _ = message.partition(":")
    if not colon or len(name) > 100 or not _FIELD.fullmatch(name):
        return None
    words = re.findall(r"[a-z_]+", name)
    return name if _OURS.issuperset(words) else None
