"""The exceptions of failed calls, each with the server's own message and its gRPC code.

FarrankError               any other code, in `code`
├── InvalidArgument        INVALID_ARGUMENT     the request is wrong: the message names field and limit
├── NotFound               NOT_FOUND            no such ranker or index: the message lists the known ones
├── ResourceExhausted      RESOURCE_EXHAUSTED   overloaded: `retry_after_s` says when to retry
├── DeadlineExceeded       DEADLINE_EXCEEDED    the deadline has passed, or would pass
├── Unavailable            UNAVAILABLE          unreachable, draining, or a process of the server died
├── AccessDenied           UNAUTHENTICATED, PERMISSION_DENIED
├── FailedPrecondition     FAILED_PRECONDITION  the ranker has no finite score for a document, ever
├── Unimplemented          UNIMPLEMENTED        the server is older than this client, or not Farrank
└── Internal               INTERNAL             a bug in the server
"""

import re
from typing import Any

import grpc

# gRPC's key for a retry delay in milliseconds (gRFC A6); a negative value forbids retries.
_PUSHBACK_MS = "grpc-retry-pushback-ms"

# The key of a call's id in the server's log.
_REQUEST_ID = "x-request-id"


class FarrankError(Exception):
    """A call failed: `message` is the server's, `code` its gRPC status.

    `retry_after_s` is the delay after which the server invites a retry; None if it sent none, -1 if it
    forbids retries. `reached_server` is False if no connection could be made. `request_id` is the call's id
    in the server's log; None if there was no answer.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    reached_server: bool = True
    request_id: str | None = None

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class InvalidArgument(FarrankError):
    """The request is wrong; a retry would fail, too."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(FarrankError):
    """No ranker or index has that name."""

    code = grpc.StatusCode.NOT_FOUND


class ResourceExhausted(FarrankError):
    """The server is overloaded, or (without `retry_after_s`) the message is larger than it ever accepts."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceeded(FarrankError):
    """The deadline has passed, or would pass before the answer is ready."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Unavailable(FarrankError):
    """The server cannot be reached or cannot answer now; another replica may answer."""

    code = grpc.StatusCode.UNAVAILABLE


class AccessDenied(FarrankError):
    """The server, or a proxy in front of it, does not accept this caller."""

    code = grpc.StatusCode.PERMISSION_DENIED


class FailedPrecondition(FarrankError):
    """The request is well formed, but the ranker gives a document no finite score."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unimplemented(FarrankError):
    """The server at this address does not know the method."""

    code = grpc.StatusCode.UNIMPLEMENTED


class Internal(FarrankError):
    """A bug in the server: its log has the traceback."""

    code = grpc.StatusCode.INTERNAL


_BY_CODE: dict[grpc.StatusCode, type[FarrankError]] = {
    **{kind.code: kind for kind in FarrankError.__subclasses__()},
    grpc.StatusCode.UNAUTHENTICATED: AccessDenied,
}


def with_code(code: grpc.StatusCode, message: str) -> FarrankError:
    """Make the exception for a gRPC status."""
    error = _BY_CODE.get(code, FarrankError)(message)
    error.code = code
    return error


def from_grpc(call: Any) -> FarrankError:
    """Make the exception for a call's gRPC status; `call` is gRPC's own exception, which is the call, too."""
    code, message = call.code(), call.details()
    unreachable = _why_unreachable(message) if code is grpc.StatusCode.UNAVAILABLE else None
    error = with_code(code, unreachable or message or code.name)
    error.reached_server = unreachable is None
    # gRPC turns an unreadable value into a very negative one, which forbids retries, as intended.
    told = dict(call.trailing_metadata() or ())
    error.request_id = told.get(_REQUEST_ID)
    pushback_ms = told.get(_PUSHBACK_MS)
    if pushback_ms is not None:
        error.retry_after_s = int(pushback_ms) / 1000 if int(pushback_ms) >= 0 else -1.0
    return error


# Parts of gRPC's messages about failed connections, and their meaning.
_CONNECTION_FAILURES = (
    ("Connection refused", "no server listens there (connection refused)"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS: connect without TLS"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not from a trusted authority"),
    ("Hostname Verification Check failed", "its certificate is for another name than this address"),
    ("Socket closed", "it closes the connection at once; perhaps it expects TLS, or a client certificate"),
    ("Domain name not found", "there is no host with this name"),
    ("Failed to parse port", "its port is not a number"),
    ("last error: OK", "the server does not speak gRPC"),
)


def _why_unreachable(message: str) -> str | None:
    """Say why there is no connection; None if gRPC's text is about something else."""
    if not message.startswith(("failed to connect", "errors resolving")):
        return None
    reason = next((plain for told, plain in _CONNECTION_FAILURES if told in message), message)
    address = re.search(r"(?:ipv[46]|unix):(\S+?): |errors resolving ([^\s\[]+): ", message)
    where = f" to {address[1] or address[2]}" if address else ""
    return f"cannot connect{where}: {reason}"
