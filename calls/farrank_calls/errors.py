"""Every error that a caller can get, each with its gRPC code.

FarrankError
├── InvalidArgument     INVALID_ARGUMENT    wrong request: names the field, the problem, the limit
│   └── TooLarge        (HTTP: 413)         the request as a whole has too many bytes
├── NotFound            NOT_FOUND           no such ranker or index: lists the known ones
├── Unauthenticated     UNAUTHENTICATED     the caller shows no API key or no valid one
├── PermissionDenied    PERMISSION_DENIED   the key may not use that ranker or index, or there is none
├── ResourceExhausted   RESOURCE_EXHAUSTED  no room now: says when to retry
│   └── RateExceeded    RESOURCE_EXHAUSTED  the caller's key has reached its rate
├── DeadlineExceeded    DEADLINE_EXCEEDED   the deadline has passed, or would pass before the answer
├── Unimplemented       UNIMPLEMENTED       unsupported form of the request (HTTP: 415, Connect: 501)
├── FailedPrecondition  FAILED_PRECONDITION a document's score is not finite (HTTP: 400)
├── Unavailable         UNAVAILABLE         draining, or a failure of device or index: retry elsewhere
│   └── Gone            UNAVAILABLE         documents that were found are no longer in the index
└── Internal            INTERNAL            a bug in Farrank
"""

import traceback
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

import grpc


class Reason(StrEnum):
    """Why a call was refused or dropped for lack of room, time or device, as metrics count it."""

    QUEUE_FULL = "queue_full"
    TEXTS_FULL = "texts_full"
    BACKLOG = "backlog"
    OTHERS_LATE = "others_late"
    CALLS = "calls"
    SHARE = "share"
    ANSWERS_UNREAD = "answers_unread"
    RECEIVING = "receiving"
    DEADLINE_TOO_SHORT = "deadline_too_short"
    DRAINING = "draining"
    WORKER_DIED = "worker_died"
    DEVICE_RELOADING = "device_reloading"
    DEVICE_HUNG = "device_hung"
    DEVICE_LOST = "device_lost"
    OUT_OF_MEMORY = "out_of_memory"
    NOT_FINITE = "not_finite"
    FIRST_STAGE_DOWN = "first_stage_down"
    FIRST_STAGE_FULL = "first_stage_full"
    FIRST_STAGE_MEMORY = "first_stage_memory"


class DroppedAt(StrEnum):
    """The stage that noticed that a call is late."""

    ARRIVAL = "arrival"
    QUEUE = "queue"
    FIRST_STAGE = "first_stage"
    IN_FLIGHT = "in_flight"


class FarrankError(Exception):
    """A request's failure as its caller sees it.

    `reason` is None if the caller or a bug caused the failure. `retry_after_ms` is a hint; None means that a
    retry is pointless.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL

    def __init__(
        self, message: str, *, reason: Reason | None = None, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.retry_after_ms = retry_after_ms


class InvalidArgument(FarrankError):
    """The request is wrong, and a retry would fail, too."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class TooLarge(InvalidArgument):
    """The request as a whole has more bytes than this server accepts."""


class NotFound(FarrankError):
    """No ranker or index has that name."""

    code = grpc.StatusCode.NOT_FOUND


class Unauthenticated(FarrankError):
    """The caller must show a valid API key. Metrics count by `why`, one of `WHYS`."""

    WHYS = ("missing", "unknown", "expired")

    code = grpc.StatusCode.UNAUTHENTICATED

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class PermissionDenied(FarrankError):
    """The caller's key may not use that ranker or index. The error does not reveal whether it exists."""

    code = grpc.StatusCode.PERMISSION_DENIED


class ResourceExhausted(FarrankError):
    """There is no room for the request now."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class RateExceeded(ResourceExhausted):
    """The caller's key has reached its rate. Metrics count by `limit`, one of `LIMITS`."""

    LIMITS = ("calls_per_s", "tokens_per_s")

    def __init__(self, message: str, limit: str, retry_after_ms: int) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.limit = limit


class DeadlineExceeded(FarrankError):
    """The deadline has passed, or (with a `reason`) would pass before the answer is ready."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED

    def __init__(
        self, message: str, *, reason: Reason | None = None, dropped_at: DroppedAt = DroppedAt.IN_FLIGHT
    ) -> None:
        super().__init__(message, reason=reason)
        self.dropped_at = dropped_at


class Unimplemented(FarrankError):
    """The request has a form that this server does not support, regardless of its content."""

    code = grpc.StatusCode.UNIMPLEMENTED


class FailedPrecondition(FarrankError):
    """The request is well formed, but the ranker cannot answer it, and a retry would fail, too."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unavailable(FarrankError):
    """The server cannot answer now; another replica may."""

    code = grpc.StatusCode.UNAVAILABLE


class Gone(Unavailable):
    """The index does not have these documents, or no longer has them. A new search finds others."""

    def __init__(self, doc_ids: Sequence[str]) -> None:
        named = ", ".join(repr(doc_id[:100]) for doc_id in doc_ids[:5])
        more = f" and {len(doc_ids) - 5} more" if len(doc_ids) > 5 else ""
        super().__init__(f"no longer in the index: {named}{more}", reason=Reason.FIRST_STAGE_DOWN)
        self.doc_ids = tuple(doc_ids)


class Internal(FarrankError):
    """A bug: the log has the traceback, the caller gets a plain sentence."""

    code = grpc.StatusCode.INTERNAL


def redacted(error: BaseException) -> str:
    """Describe a failure by its types and places. Its message may contain a caller's words."""
    kinds: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(kinds) < 10:
        kinds.append(str(getattr(cause, "classname", None) or type(cause).__name__))
        cause = cause.__cause__ or cause.__context__
    places = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return f"{' from '.join(kinds)}\n{places}"
