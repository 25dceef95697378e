"""One call as its operator sees it: its id, and what its line in the log tells.

Callers' words stand in no line: no query, no document, no name or id that they sent, no message of an error,
which may quote them. Their request id alone does, if it is one: it is there to be found.
"""

import random
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from farrank.v1 import rerank_pb2 as pb
from farrank_server.errors import DeadlineExceeded, FarrankError, RateExceeded, Unauthenticated

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

    from farrank_server.telemetry.tracing import CallTrace

# Numbers, and words of ours.
Facts = Mapping[str, str | int | float]

# Where a caller sends an id, and where it is answered: gRPC's metadata, HTTP's headers.
REQUEST_ID = "x-request-id"

# With a trace's id beside it, an exemplar of OpenMetrics may have no more characters.
MOST_ID_CHARACTERS = 64

_ID = re.compile(rf"[A-Za-z0-9._:/+=@-]{{1,{MOST_ID_CHARACTERS}}}")


@dataclass(slots=True, eq=False)
class CallRecord:
    """What is told of a call. `facts` is what its line holds beside code and time: numbers, words of ours.

    `trace` is None unless the call is traced. Belongs to the event loop, but for `step`.
    """

    request_id: str
    facts: dict[str, str | int | float] = field(default_factory=dict)
    trace: "CallTrace | None" = None

    def exemplar(self) -> dict[str, str]:
        """The labels by which a sample of a histogram leads to this call."""
        if self.trace is not None:
            return {"request_id": self.request_id, "trace_id": self.trace.trace_id}
        return {"request_id": self.request_id} if self.request_id else {}

    def step(self, name: str, start_s: float, end_s: float, **facts: str | int | float) -> None:
        """Note a stage that has ended; times are of `time.monotonic`. Any thread may."""
        if self.trace is not None:
            self.trace.step(name, start_s, end_s, facts)

    def stage(self, name: str, **facts: str | int | float) -> AbstractContextManager[None]:
        """Be in a stage that asks others, who go on in its trace."""
        return nullcontext() if self.trace is None else self.trace.stage(name, facts)

    def failed(self, error: FarrankError) -> None:
        """Note why the call failed, as far as that is ours to say."""
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


@dataclass(slots=True, eq=False)
class TracedBatch:
    """A batch that ran on the device with inputs of traced calls. Times are of `time.monotonic`."""

    start_s: float
    end_s: float
    facts: Facts
    traces: "list[CallTrace]"
    span_context: "SpanContext | None" = None


# Of what belongs to no call; nothing is noted in it.
NO_CALL = CallRecord("")

_current: ContextVar[CallRecord | None] = ContextVar("farrank_call", default=None)


def begin(given_id: str | None) -> CallRecord:
    """Begin the record of a call, in the context that the call is answered in.

    The id that its caller gave is taken as it is. Another is made where there is none, or none that is fit
    for a log: 1 to 64 letters, digits and ._:/+=@- of ASCII.
    """
    record = CallRecord(
        given_id if given_id and _ID.fullmatch(given_id) else f"{random.getrandbits(128):032x}"
    )
    _current.set(record)
    return record


def current() -> CallRecord:
    """The record of the call that is answered in this context; one without an id if there is none."""
    return _current.get() or CallRecord("")


def _names_of(message: type[Message]) -> set[str]:
    return {each.name for each in message.DESCRIPTOR.fields}


# The first word of an error is the field that is wrong. In JSON a caller may have named it: what is none of
# ours is not repeated.
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
