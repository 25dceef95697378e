"""Every error that a caller can meet, each with its gRPC code.

    FarrankError
    ├── InvalidArgument     INVALID_ARGUMENT    the request is wrong: names the field, the problem, the limit
    │   └── TooLarge        (HTTP says 413)     the request as a whole has more bytes than are taken
    ├── NotFound            NOT_FOUND           no such ranker or index: lists the known ones
    ├── ResourceExhausted   RESOURCE_EXHAUSTED  no room now: says when to come back
    ├── DeadlineExceeded    DEADLINE_EXCEEDED   too late, or it would be
    ├── Unimplemented       UNIMPLEMENTED       not taken in this form (HTTP says 415, Connect 501)
    ├── Unavailable         UNAVAILABLE         draining, or what held the request died: retry elsewhere
    │   └── Gone            UNAVAILABLE         documents that were found are in the index no more
    └── Internal            INTERNAL            a bug of ours

Not all failures reach a caller: `ConfigError` stops the start.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

import grpc


class Reason(StrEnum):
    """Why a call was refused or given up for want of room, time or device, as metrics count it."""

    QUEUE_FULL = "queue_full"
    TEXTS_FULL = "texts_full"
    BACKLOG = "backlog"
    OTHERS_LATE = "others_late"
    CALLS = "calls"
    DEADLINE_TOO_SHORT = "deadline_too_short"
    DRAINING = "draining"
    WORKER_DIED = "worker_died"
    DEVICE_RELOADING = "device_reloading"
    DEVICE_HUNG = "device_hung"
    DEVICE_LOST = "device_lost"
    OUT_OF_MEMORY = "out_of_memory"
    FIRST_STAGE_DOWN = "first_stage_down"
    FIRST_STAGE_FULL = "first_stage_full"
    FIRST_STAGE_MEMORY = "first_stage_memory"


class DroppedAt(StrEnum):
    """Where it was noticed that an admitted call is late."""

    QUEUE = "queue"
    FIRST_STAGE = "first_stage"
    IN_FLIGHT = "in_flight"


class FarrankError(Exception):
    """A request's failure as its caller sees it.

    `reason` is None where the caller or a bug was the cause. `retry_after_ms` is a hint, None where retrying
    is pointless.
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
    """The request is wrong and will be wrong again."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class TooLarge(InvalidArgument):
    """The request as a whole has more bytes than this server takes."""


class NotFound(FarrankError):
    """No ranker or index has that name."""

    code = grpc.StatusCode.NOT_FOUND


class ResourceExhausted(FarrankError):
    """There is no room for the request now."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceeded(FarrankError):
    """The deadline has passed, or (with a `reason`) would pass before the answer could be ready."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED

    def __init__(
        self, message: str, *, reason: Reason | None = None, dropped_at: DroppedAt = DroppedAt.IN_FLIGHT
    ) -> None:
        super().__init__(message, reason=reason)
        self.dropped_at = dropped_at


class Unimplemented(FarrankError):
    """The request comes in a form that this server does not take, whatever it says."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Unavailable(FarrankError):
    """The server cannot answer now, another replica may."""

    code = grpc.StatusCode.UNAVAILABLE


class Gone(Unavailable):
    """An index does not have these documents, any more or at all; another search finds others."""

    def __init__(self, doc_ids: Sequence[str]) -> None:
        named = ", ".join(repr(doc_id[:100]) for doc_id in doc_ids[:5])
        more = f" and {len(doc_ids) - 5} more" if len(doc_ids) > 5 else ""
        super().__init__(f"no longer in the index: {named}{more}", reason=Reason.FIRST_STAGE_DOWN)
        self.doc_ids = tuple(doc_ids)


class Internal(FarrankError):
    """A bug: the log has the traceback, the caller a plain sentence."""

    code = grpc.StatusCode.INTERNAL


class ConfigError(ValueError):
    """The configuration is wrong; stops the start. Each problem names key, value and what is allowed."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
