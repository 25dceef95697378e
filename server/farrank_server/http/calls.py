"""One HTTP request from its headers to its answer: the part that all dialects share.

A dialect turns a body into the protobuf request of a method, and the method's answer into a response. Between
the two, a call takes the same path as through gRPC: the same checks, limits, admission, counting and scores.
"""

import asyncio
import math
import time
import zlib
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from functools import partial
from io import BytesIO
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive

from farrank_calls.content_coding import accepts_gzip
from farrank_calls.errors import (
    DeadlineExceeded,
    DroppedAt,
    FarrankError,
    InvalidArgument,
    ResourceExhausted,
    TooLarge,
    Unauthenticated,
    Unimplemented,
)
from farrank_calls.fairness.fair_order import Account
from farrank_server.access.callers import Caller, Entry
from farrank_server.config.schema import LimitsConfig
from farrank_server.http.body_threads import SMALL_BYTES, BodyThreads
from farrank_server.http.json_bodies import JSON
from farrank_server.http.large_answers import PacedResponse, encoded, until_gone
from farrank_server.metrics import Endpoint
from farrank_server.service.connections import peer_name
from farrank_server.service.guard import Guard
from farrank_server.service.methods import RerankService
from farrank_server.service.open_calls import OpenCalls
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import SMALL_ANSWER_BYTES, UnreadAnswers
from farrank_server.service.validate import too_large

Value = TypeVar("Value")

PROTO = "application/proto"

# Reading a larger body on the event loop may take longer than a trip to another thread, and delays all calls.
INLINE_BYTES = 65_536

# Writing an answer takes as long as reading a body of about 16 times its size: it holds many small messages.
ANSWER_COSTS = 16

# Limit on the members of a gzip body; clients send one.
MAX_MEMBERS = 32

# The status of a response whose caller has disconnected; nginx uses the same.
CALLER_GONE = 499


class Dialect(Protocol):
    """One request in one dialect. `read` and `write` may run on another thread, one after the other."""

    def read(self, body: bytes, limits: LimitsConfig, caller: Caller) -> Message:
        """Turn a body into the request of the method.

        Raises: InvalidArgument, NotFound or PermissionDenied.
        """

    def write(self, answer: Any) -> Response:
        """Turn the method's answer into a response.

        Raises: InvalidArgument if the caller does not accept the result.
        """

    def refuse(self, error: FarrankError) -> Response:
        """Turn an error into a response. This also works before anything was read."""


STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.UNIMPLEMENTED: 415,
    grpc.StatusCode.INTERNAL: 500,
}
_PASSING = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
_RETRY_AFTER_MS = 1000


def status_of(error: FarrankError) -> int:
    """The HTTP status of an error."""
    return 413 if isinstance(error, TooLarge) else STATUSES[error.code]


def refusal_headers(error: FarrankError) -> dict[str, str]:
    """The headers that say when to retry, in seconds, and in milliseconds for clients that know these.

    For a missing or invalid API key: the header that says how to send one (RFC 6750).
    """
    if isinstance(error, Unauthenticated):
        invalid = "" if error.why == "missing" else ', error="invalid_token"'
        return {"WWW-Authenticate": f'Bearer realm="farrank"{invalid}'}
    if error.code not in _PASSING:
        return {}
    retry_after_ms = error.retry_after_ms or _RETRY_AFTER_MS
    return {
        "Retry-After": str(max(1, math.ceil(retry_after_ms / 1000))),
        "retry-after-ms": str(retry_after_ms),
    }


# The key of the call's record in its ASGI scope.
RECORD = "farrank.record"


class HttpCalls:
    """Answers HTTP requests by the methods of the service. Belongs to the event loop that created it."""

    def __init__(
        self,
        limits: LimitsConfig,
        service: RerankService,
        guard: Guard,
        unread: UnreadAnswers,
        receiving: ReceivingBudget,
    ) -> None:
        self._limits = limits
        self._unread = unread
        self._receiving = receiving
        self._service = service
        self._guard = guard
        # As over gRPC: the calls in flight, and as many requests that arrive or have unread answers.
        self._open_requests = OpenCalls(
            "HTTP requests", 2 * limits.max_concurrent_calls, limit="max_concurrent_calls"
        )
        self._open_requests.show(guard.metrics)
        self._body_threads = BodyThreads()

    def close(self) -> None:
        """Stop the threads."""
        self._body_threads.close()

    async def answer(self, request: Request, method: str, dialect: Dialect) -> Response:
        """Answer a request by a method of the service."""
        came_s = time.monotonic()
        peer = _peer(request)
        entry = self._guard.enter(request.scope[RECORD], request.headers.get, peer)
        account = entry.caller.account
        # The body of a refused caller is not read.
        refusal = entry.refusal or self._open_requests.enter(peer, account)
        if refusal is not None:
            return await self._refused(method, entry, refusal, dialect)
        with ExitStack() as held:
            entry.on_admitted = held.close
            try:
                _check_origin(request)
                deadline_s = came_s + self._timeout_s(request)
                body = await self._body(request, deadline_s, account, held)
                read = partial(dialect.read, body, self._limits, entry.caller)
                message = await self._run(account, len(body), read, deadline_s)
                del body, read
            except ClientDisconnect:
                self._guard.metrics.not_received.labels("cancelled").inc()
                with suppress(asyncio.CancelledError):
                    await self._guard.answer(method, entry, asyncio.CancelledError(), _unreachable)
                return Response(status_code=CALLER_GONE)
            except Exception as error:
                return await self._refused(method, entry, error, dialect)

            async def handle(message: Message) -> Response:
                answer = await getattr(self._service, method)(message, deadline_s, entry)
                size = ANSWER_COSTS * answer.ByteSize()
                written = await self._run(account, size, partial(dialect.write, answer))
                return await self._sent(request, account, written)

            outcome = await _cancel_on_disconnect(
                request.receive, self._guard.answer(method, entry, message, handle)
            )
        return dialect.refuse(outcome) if isinstance(outcome, FarrankError) else outcome

    async def describe(
        self,
        request: Request,
        method: str,
        write: Callable[[Caller], Response],
        refuse: Callable[[FarrankError], Response],
    ) -> Response:
        """Answer a request from data that is at hand: `write` builds the response for an allowed caller."""

        async def handle(_: Any) -> Response:
            return await self._sent(request, entry.caller.account, write(entry.caller))

        entry = self._guard.enter(request.scope[RECORD], request.headers.get, _peer(request))
        outcome = await self._guard.answer(method, entry, None, handle)
        return refuse(outcome) if isinstance(outcome, FarrankError) else outcome

    async def _sent(self, request: Request, account: Account, written: Response) -> Response:
        """Compress a large answer if its caller takes gzip, and count it as unread until the caller has it.

        Raises: ResourceExhausted.
        """
        takes_gzip = accepts_gzip(",".join(request.headers.getlist("accept-encoding")))
        # Its size is known only now: some dialects add the texts of the request to the answer.
        encode = partial(encoded, written, with_gzip=takes_gzip)
        ready = await self._run(account, len(written.body), encode)
        if len(ready.body) <= SMALL_ANSWER_BYTES:
            return ready
        noted = self._unread.add(Endpoint.HTTP, _peer(request), len(ready.body))
        return PacedResponse(ready, self._unread, noted)

    async def _refused(self, method: str, entry: Entry, error: Exception, dialect: Dialect) -> Response:
        refused = await self._guard.answer(method, entry, error, _unreachable)
        assert isinstance(refused, FarrankError)
        return dialect.refuse(refused)

    def _timeout_s(self, request: Request) -> float:
        timeout_ms = request.headers.get("connect-timeout-ms")
        if timeout_ms is None:
            return self._limits.default_timeout_s
        if not (timeout_ms.isascii() and timeout_ms.isdigit() and len(timeout_ms) <= 10):
            raise InvalidArgument(
                f"Connect-Timeout-Ms: {timeout_ms[:100]!r} is not a whole number of at most 10 digits"
            )
        return int(timeout_ms) / 1000

    async def _body(self, request: Request, deadline_s: float, account: Account, held: ExitStack) -> bytes:
        """Read a body piece by piece, within the limits of bytes and time. `held` receives its reserved room.

        Raises: TooLarge, Unimplemented, DeadlineExceeded; ResourceExhausted if there is no room for the body.
        """
        limit = self._limits.max_request_bytes
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise too_large(f"{declared} bytes", self._limits)
        encoding = request.headers.get("content-encoding", "identity").strip()
        if encoding.lower() not in ("identity", "gzip"):
            raise Unimplemented(f"Content-Encoding: is {encoding[:100]!r}; it must be gzip or identity")
        is_packed = encoding.lower() == "gzip"
        is_of_unknown_size = is_packed or "transfer-encoding" in request.headers
        size = limit if is_of_unknown_size else int(declared or 0)
        try:
            async with asyncio.timeout_at(deadline_s):
                room = held.enter_context(await self._receiving.enter(account, size))
                body = await self._pieces(request, size)
        except ResourceExhausted:
            self._guard.metrics.not_received.labels("receiving").inc()
            raise
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the request was read") from None
        # Connect's clients may declare gzip and send an empty body.
        if body and is_packed:
            body = await self._unpacked(body, account, deadline_s)
        room.shrink(len(body))
        return body

    async def _pieces(self, request: Request, size: int) -> bytes:
        limit, max_s = self._limits.max_request_bytes, self._receiving.arrival_s(size)
        # `getvalue` returns the bytes of a BytesIO without a copy.
        body = BytesIO()
        # The time to arrive is limited even if the caller's deadline is later.
        try:
            async with asyncio.timeout(max_s):
                async for piece in request.stream():
                    if body.tell() + len(piece) > limit:
                        raise too_large(f"more than {limit} bytes", self._limits)
                    body.write(piece)
        except TimeoutError:
            self._guard.metrics.not_received.labels("late").inc()
            raise DeadlineExceeded(
                f"request: did not arrive within {max_s:g} s; {body.tell()} of at most {size} bytes arrived",
                dropped_at=DroppedAt.ARRIVAL,
            ) from None
        return body.getvalue()

    async def _unpacked(self, packed: bytes, account: Account, deadline_s: float) -> bytes:
        limit = self._limits.max_request_bytes
        # The unpacked size is unknown. A body that exceeds the small size starts again among the large ones.
        for max_bytes in (min(SMALL_BYTES, limit), limit):
            if len(packed) <= max_bytes:
                unpack = partial(_unzipped, packed, max_bytes)
                unpacked = await self._body_threads.run(account, max_bytes, unpack, deadline_s)
                if unpacked is not None:
                    return unpacked
        raise too_large(f"more than {limit} bytes after decompression", self._limits)

    async def _run(
        self, account: Account, size: int, work: Callable[[], Value], deadline_s: float | None = None
    ) -> Value:
        """Do a piece of work; long work runs on another thread, so that it does not block the event loop."""
        return (
            work() if size <= INLINE_BYTES else await self._body_threads.run(account, size, work, deadline_s)
        )


def media_type(request: Request) -> str:
    """The media type of a request, without its parameters; empty if it names none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_origin(request: Request) -> None:
    """Refuse media types that a page of any origin may send without the browser's preflight request.

    Raises: Unimplemented.
    """
    kind = media_type(request)
    if "origin" in request.headers and kind not in (JSON, PROTO):
        raise Unimplemented(f"Content-Type: is {kind[:100]!r}; with an Origin it must be {JSON}")


def _peer(request: Request) -> str:
    return peer_name(*request.client) if request.client else ""


def _unzipped(body: bytes, max_bytes: int) -> bytes | None:
    """Unpack a gzip body; return None if it unpacks to more than `max_bytes` bytes.

    Raises: InvalidArgument if the body is not gzip, or ends early.
    """
    unpacked: list[bytes] = []
    room = max_bytes + 1
    try:
        # A body may have several members in a row. `unused_data` copies the rest each time.
        while body:
            if len(unpacked) == MAX_MEMBERS:
                raise InvalidArgument(f"request: has more than {MAX_MEMBERS} gzip members")
            member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            unpacked.append(member.decompress(body, room))
            room -= len(unpacked[-1])
            if not room:
                return None
            if not member.eof:
                raise InvalidArgument("request: its gzip data is incomplete")
            body = member.unused_data
    except zlib.error as error:
        raise InvalidArgument(
            f"request: is not valid gzip, although Content-Encoding is gzip: {error}"
        ) from None
    return b"".join(unpacked)


async def _cancel_on_disconnect(
    receive: Receive, answering: Coroutine[Any, Any, Response | FarrankError]
) -> Response | FarrankError:
    """Await an answer; cancel its work if the caller disconnects."""
    call = asyncio.create_task(answering)
    watch = asyncio.create_task(until_gone(receive))
    watch.add_done_callback(lambda _: call.cancel())
    try:
        return await call
    except asyncio.CancelledError:
        if not call.cancelled() or watch.cancelled() or not watch.done():
            raise
        return Response(status_code=CALLER_GONE)
    finally:
        watch.cancel()


async def _unreachable(_: Message) -> Response:
    raise AssertionError("an error is its own answer")
