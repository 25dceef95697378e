"""Every failure of a call, each with the server's own message and its gRPC code.

FarrankError               any other code (`code` says which)
├── InvalidArgument        INVALID_ARGUMENT     the request is wrong: the message names field and limit
├── NotFound               NOT_FOUND            no such ranker or index: the message lists the known ones
├── ResourceExhausted      RESOURCE_EXHAUSTED   no room now: `retry_after_s` says when to come back
├── DeadlineExceeded       DEADLINE_EXCEEDED    too late, or it would be
├── Unavailable            UNAVAILABLE          not reachable, draining, or what held the request died
├── AccessDenied           UNAUTHENTICATED, PERMISSION_DENIED
├── FailedPrecondition     FAILED_PRECONDITION  the ranker gives a document no finite score, now and later
├── Unimplemented          UNIMPLEMENTED        what answers is older than this client, or no Farrank
└── Internal               INTERNAL             a bug of the server
"""

import re
from typing import Any

import grpc

# gRPC's name for "come back in so many milliseconds" (gRFC A6); a negative value says "do not".
_PUSHBACK_MS = "grpc-retry-pushback-ms"

# Where a server says which id a call has in its log.
_REQUEST_ID = "x-request-id"


class FarrankError(Exception):
    """A call failed: `message` is the server's, `code` its gRPC status.

    `retry_after_s` is the server's hint when to come back; None where it gave none, -1 where it asks
    not to be asked again. `reached_server` is False where no connection could be made. `request_id` is
    the id by which the server's log knows the call; None where nothing came back.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    reached_server: bool = True
    request_id: str | None = None

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class InvalidArgument(FarrankError):
    """The request is wrong and will be wrong again."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(FarrankError):
    """No ranker or index has that name."""

    code = grpc.StatusCode.NOT_FOUND


class ResourceExhausted(FarrankError):
    """There is no room for the request now, or (without `retry_after_s`) its message is too large ever."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceeded(FarrankError):
    """The deadline has passed, or passes before the answer could be ready."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Unavailable(FarrankError):
    """The server cannot be reached or cannot answer now; another replica may."""

    code = grpc.StatusCode.UNAVAILABLE


class AccessDenied(FarrankError):
    """The server, or a proxy before it, does not accept this caller."""

    code = grpc.StatusCode.PERMISSION_DENIED


class FailedPrecondition(FarrankError):
    """The request is well formed, and the ranker cannot answer it: a document has no finite score with it."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unimplemented(FarrankError):
    """What answers at this address does not know the method."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(FarrankError):
    """A bug of the server: its log has the traceback."""

    code = grpc.StatusCode.INTERNAL


_BY_CODE: dict[grpc.StatusCode, type[FarrankError]] = {
    **{kind.code: kind for kind in FarrankError.__subclasses__()},
    grpc.StatusCode.UNAUTHENTICATED: AccessDenied,
}


def from_grpc(call: Any) -> FarrankError:
    """Make the exception for a call's gRPC status, from what gRPC raised: that is the failed call, too."""
    code, message = call.code(), call.details()
    unreachable = _why_unreachable(message) if code is grpc.StatusCode.UNAVAILABLE else None
    error = _BY_CODE.get(code, FarrankError)(unreachable or message or code.name)
    error.code = code
    error.reached_server = unreachable is None
    # gRPC hands on a value that it cannot read as a very negative one, which says "do not" as it should.
    told = dict(call.trailing_metadata() or ())
    error.request_id = told.get(_REQUEST_ID)
    pushback_ms = told.get(_PUSHBACK_MS)
    if pushback_ms is not None:
        error.retry_after_s = int(pushback_ms) / 1000 if int(pushback_ms) >= 0 else -1.0
    return error


# What gRPC says of a connection that failed, and what that means.
_CONNECTION_FAILURES = (
    ("Connection refused", "nobody listens there (connection refused)"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS: connect without TLS"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is from no authority that is trusted here"),
    ("Hostname Verification Check failed", "its certificate is for another name than this address"),
    ("Socket closed", "it hangs up at once; perhaps it expects TLS, or a certificate of the caller"),
    ("Domain name not found", "there is no host of that name"),
    ("Failed to parse port", "its port is no number"),
    ("last error: OK", "what answers does not speak gRPC"),
)


def _why_unreachable(message: str) -> str | None:
    """Say why there is no connection; None if gRPC's text is about something else."""
    if not message.startswith(("failed to connect", "errors resolving")):
        return None
    reason = next((plain for told, plain in _CONNECTION_FAILURES if told in message), message)
    address = re.search(r"(?:ipv[46]|unix):(\S+?): |errors resolving ([^\s\[]+): ", message)
    where = f" to {address[1] or address[2]}" if address else ""
    return f"cannot connect{where}: {reason}"
