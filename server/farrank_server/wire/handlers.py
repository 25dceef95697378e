"""gRPC's handlers: they parse requests, pass on gRPC's deadline, and turn errors into a status."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from farrank_calls.errors import (
    DeadlineExceeded,
    DroppedAt,
    FarrankError,
    InvalidArgument,
    ResourceExhausted,
)
from farrank_calls.telemetry.call_record import REQUEST_ID, begin
from farrank_server.access.callers import Entry, account_of_peer
from farrank_server.config.schema import LimitsConfig
from farrank_server.metrics import Endpoint
from farrank_server.service.fields import parse_in_pieces
from farrank_server.service.guard import Guard
from farrank_server.service.methods import SERVICE, RerankService
from farrank_server.service.open_calls import OpenCalls
from farrank_server.service.receiving import ReceivingBudget
from farrank_server.service.unread import UnreadAnswer, UnreadAnswers
from farrank_server.service.validate import too_large
from farrank_server.wire.metadata import Context, bounded_metadata, header_in

# gRPC's key for the time after which the client may retry (gRFC A6); its clients honour it.
RETRY_KEY = "grpc-retry-pushback-ms"

Trailing = tuple[tuple[str, str], ...]
Method = Callable[[Any, float | None, Entry], Awaitable[Message]]

# A request that is too large by at most this gets an answer that names the limit. gRPC refuses larger ones
# unread.
BEYOND_BYTES = 2 * 2**20


def handlers(
    service: RerankService,
    guard: Guard,
    limits: LimitsConfig,
    unread: UnreadAnswers,
    receiving: ReceivingBudget,
) -> grpc.GenericRpcHandler:
    """Create the handlers of a service's methods; requests have at most `max_request_bytes`.

    An interceptor would not do: gRPC would run its chain for every call.
    """
    open_calls = OpenCalls("calls", places_for_calls(limits))
    open_calls.show(guard.metrics)
    return grpc.method_handlers_generic_handler(
        SERVICE.full_name,
        {
            # Declared as a stream of requests, of which only the first is read. For a unary call, gRPC would
            # start the handler only once the request is complete, and a call without a request could not be
            # ended.
            method.name: grpc.stream_unary_rpc_method_handler(
                # Requests and answers are bytes here: gRPC would parse any request at once, and report a
                # failure to the caller as INTERNAL. Answers must be measured, too.
                _handler(
                    getattr(service, method.name),
                    method.name,
                    GetMessageClass(method.input_type),
                    guard,
                    limits,
                    unread,
                    receiving,
                    open_calls,
                )
            )
            for method in SERVICE.methods
        },
    )


def _handler(
    method: Method,
    name: str,
    kind: type[Message],
    guard: Guard,
    limits: LimitsConfig,
    unread: UnreadAnswers,
    receiving: ReceivingBudget,
    open_calls: OpenCalls,
) -> Callable[[object, Context], Awaitable[bytes]]:
    slot = limits.max_request_bytes + BEYOND_BYTES

    async def call(_: object, context: Context) -> bytes:
        async def handle(request: Message) -> bytes:
            remaining_s = context.time_remaining()
            deadline_s = None if remaining_s is None else time.monotonic() + remaining_s
            answer = await method(request, deadline_s, entry)
            written = answer.SerializeToString()
            note_sent(len(written))
            return written

        def note_sent(size: int) -> None:
            sent = unread.add(Endpoint.GRPC, context.peer(), size, account)
            # gRPC's task for the call ends when the whole answer has been sent, or the call was cancelled. A
            # done callback of the context would keep the context, and all that gRPC holds for the call, in a
            # cycle.
            task = asyncio.current_task()
            assert task is not None
            task.add_done_callback(partial(_removed, unread, sent))

        header = header_in(await bounded_metadata(context))
        record = begin(header(REQUEST_ID))
        its_id = ((REQUEST_ID, record.request_id),)
        context.set_trailing_metadata(its_id)
        entry = guard.enter(record, header, context.peer())
        account = entry.caller.account if entry.refusal is None else account_of_peer(context.peer())
        with ExitStack() as held:
            entry.on_admitted = held.close
            request: Message | BaseException | None
            # The request of a refused caller is not read.
            request = entry.refusal or open_calls.enter(context.peer(), account)
            if request is None:
                try:
                    room = held.enter_context(await receiving.enter(account, slot))
                    data = await _received(context, min(receiving.arrival_s(slot), limits.default_timeout_s))
                except (asyncio.CancelledError, FarrankError) as error:
                    # The guard logs and counts the error, as for calls whose request has arrived.
                    request = error.with_traceback(None)
                    guard.metrics.not_received.labels(_why(error)).inc()
                else:
                    room.shrink(len(data))
                    try:
                        request = await _parsed(kind, data, limits)
                    except (asyncio.CancelledError, FarrankError) as error:
                        request = error.with_traceback(None)
                    del data
            # gRPC cancels the handler when the caller disconnects, and when the deadline passes.
            answer = await guard.answer(name, entry, request, handle, context.time_remaining)
            # The error that `refuse` raises stays in a cycle with the call's context and this frame.
            del request
        if isinstance(answer, FarrankError):
            note_sent(0)
            await refuse(context, answer, its_id)
        return answer

    return call


def _removed(unread: UnreadAnswers, sent: UnreadAnswer, _: "asyncio.Task[Any]") -> None:
    unread.remove(sent)


async def refuse(context: Context, error: FarrankError, trailing: Trailing = ()) -> NoReturn:
    """End a call with an error, its trailing metadata, and the time after which to retry."""
    hint = () if error.retry_after_ms is None else ((RETRY_KEY, str(error.retry_after_ms)),)
    await context.abort(error.code, error.message, (*trailing, *hint))
    raise AssertionError("abort raises")


def places_for_calls(limits: LimitsConfig) -> int:
    """Return how many calls may be open: those in flight, and as many that arrive or have unread answers."""
    return 2 * limits.max_concurrent_calls


async def _received(context: Context, max_s: float) -> bytes:
    """Read a call's request. Raises: DeadlineExceeded, InvalidArgument."""
    try:
        # gRPC itself enforces the caller's deadline.
        async with asyncio.timeout(max_s):
            data = await context.read()
    except TimeoutError:
        raise DeadlineExceeded(
            f"request: did not arrive within {max_s:g} s", dropped_at=DroppedAt.ARRIVAL
        ) from None
    if data is grpc.aio.EOF:
        raise InvalidArgument("request: is missing")
    assert isinstance(data, bytes)
    return data


def _why(error: BaseException) -> str:
    """Return the reason why a request was not received, as metrics count it.

    gRPC itself refuses a message that is too large or compressed. This call then reads no message (empty), or
    is cancelled as if its caller had disconnected.
    """
    if isinstance(error, asyncio.CancelledError):
        return "cancelled"
    if isinstance(error, DeadlineExceeded):
        return "late"
    return "receiving" if isinstance(error, ResourceExhausted) else "empty"


async def _parsed(kind: type[Message], data: bytes, limits: LimitsConfig) -> Message:
    """Parse a request. Raises: TooLarge, InvalidArgument."""
    if len(data) > limits.max_request_bytes:
        raise too_large(f"{len(data)} bytes", limits)
    return await parse_in_pieces(kind, data, limits)
