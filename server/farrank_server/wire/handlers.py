"""gRPC's handlers: bytes become a request, gRPC's deadline the call's, an error a status."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from farrank_server.access.callers import Caller
from farrank_server.config.schema import LimitsConfig
from farrank_server.errors import DeadlineExceeded, FarrankError, InvalidArgument, ResourceExhausted
from farrank_server.metrics import Door
from farrank_server.service.fields import parsed_in_turn
from farrank_server.service.guard import Guard
from farrank_server.service.methods import SERVICE, RerankService
from farrank_server.service.unread import Unread, UnreadAnswers
from farrank_server.service.validate import too_large
from farrank_server.telemetry.call_record import REQUEST_ID, begin

# gRPC's own key for a server's wish when to be called again (gRFC A6); its clients honour it.
RETRY_KEY = "grpc-retry-pushback-ms"

# By then some of an address's calls have sent their requests, or it has given them up.
RETRY_BEGUN_MS = 1000

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Trailing = tuple[tuple[str, str], ...]
Method = Callable[[Any, float | None, Caller], Awaitable[Message]]


def handlers(
    service: RerankService, guard: Guard, limits: LimitsConfig, unread: UnreadAnswers
) -> grpc.GenericRpcHandler:
    """Make the handlers of a service's methods; requests have at most `max_request_bytes`.

    Not an interceptor: gRPC would go through its chain with every call.
    """
    begun = Begun(limits.max_concurrent_calls, limits.default_timeout_s)
    return grpc.method_handlers_generic_handler(
        SERVICE.full_name,
        {
            # A stream of requests, of which the first is the only one: gRPC would begin a call of one request
            # only when that is there, and nobody could end one whose caller sends none.
            method.name: grpc.stream_unary_rpc_method_handler(
                # In bytes, both ways: gRPC would parse whatever comes at once, and a failure there would
                # reach the caller as INTERNAL. And what is sent is weighed.
                _handler(
                    getattr(service, method.name),
                    method.name,
                    GetMessageClass(method.input_type),
                    guard,
                    limits,
                    unread,
                    begun,
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
    begun: "Begun",
) -> Callable[[object, Context], Awaitable[bytes]]:
    async def call(_: object, context: Context) -> bytes:
        async def behave(request: Message) -> bytes:
            remaining_s = context.time_remaining()
            deadline_s = None if remaining_s is None else time.monotonic() + remaining_s
            answer = await method(request, deadline_s, entry.caller)
            written = answer.SerializeToString()
            sent = unread.add(Door.GRPC, context.peer(), len(written))
            # gRPC's task for the call ends when all of the answer has left, or the call has been cancelled.
            # A done callback of the context would keep that, and what gRPC holds for the call, in a cycle.
            task = asyncio.current_task()
            assert task is not None
            task.add_done_callback(partial(_removed, unread, sent))
            return written

        def header(key: str) -> str | None:
            metadata = context.invocation_metadata() or ()
            return next((value for name, value in metadata if name == key and isinstance(value, str)), None)

        its_id = ((REQUEST_ID, begin(header(REQUEST_ID)).request_id),)
        context.set_trailing_metadata(its_id)
        entry = guard.enter(header, context.peer())
        # Of a caller who may not come in nothing is read.
        request: Message | BaseException
        try:
            request = entry.refusal or await _read(kind, await begun.arrived(context), limits)
        except asyncio.CancelledError as gone:
            # That is told and counted, too.
            request = gone
        # gRPC cancels the handler when the caller goes, and when the deadline passes.
        answer = await guard.answer(name, entry, request, behave, context.time_remaining)
        # What `refuse` raises stays in a cycle with the call's context and with this frame.
        del request
        if isinstance(answer, FarrankError):
            await refuse(context, answer, its_id)
        return answer

    return call


def _removed(unread: UnreadAnswers, sent: Unread, _: "asyncio.Task[Any]") -> None:
    unread.remove(sent)


async def refuse(context: Context, error: FarrankError, trailing: Trailing = ()) -> NoReturn:
    """End a call with an error, and what else its caller is told."""
    hint = () if error.retry_after_ms is None else ((RETRY_KEY, str(error.retry_after_ms)),)
    await context.abort(error.code, error.message, (*trailing, *hint))
    raise AssertionError("abort raises")


class Begun:
    """Calls whose request is not here yet: so many of one address, each for so long."""

    def __init__(self, most_of_one: int, most_s: float) -> None:
        self._most_of_one, self._most_s = most_of_one, most_s
        self._of = Counter[str]()

    async def arrived(self, context: Context) -> bytes | FarrankError:
        """Wait for a call's request, or say what its caller is to be told."""
        address = context.peer().rpartition(":")[0]
        if self._of[address] >= self._most_of_one:
            told = f"{self._most_of_one} calls of this address have sent no request yet, the most"
            return ResourceExhausted(told, retry_after_ms=RETRY_BEGUN_MS)
        self._of[address] += 1
        try:
            # A deadline of the caller's own is gRPC's to keep.
            async with asyncio.timeout(self._most_s):
                data = await context.read()
        except TimeoutError:
            return DeadlineExceeded(f"request: has not arrived within {self._most_s:g} s")
        finally:
            self._of[address] -= 1
            if not self._of[address]:
                del self._of[address]
        if data is grpc.aio.EOF:
            return InvalidArgument("request: none was sent")
        assert isinstance(data, bytes)
        return data


async def _read(
    kind: type[Message], data: bytes | FarrankError, limits: LimitsConfig
) -> Message | FarrankError:
    """Read bytes, or say what the caller is to be told."""
    if isinstance(data, FarrankError):
        return data
    if len(data) > limits.max_request_bytes:
        return too_large(f"{len(data)} bytes", limits)
    try:
        return await parsed_in_turn(kind, data, limits)
    except FarrankError as error:
        return error.with_traceback(None)
