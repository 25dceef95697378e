"""gRPC's handlers: bytes become a request, gRPC's deadline the call's, an error a status."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from farrank_server.config.schema import LimitsConfig
from farrank_server.errors import FarrankError, InvalidArgument
from farrank_server.service.guard import Guard
from farrank_server.service.methods import SERVICE, RerankService
from farrank_server.service.validate import too_large

# gRPC's own key for a server's wish when to be called again (gRFC A6); its clients honour it.
RETRY_KEY = "grpc-retry-pushback-ms"

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Method = Callable[[Any, float | None], Awaitable[Message]]


def handlers(service: RerankService, guard: Guard, limits: LimitsConfig) -> grpc.GenericRpcHandler:
    """Make the handlers of a service's methods; requests have at most `max_request_bytes`.

    Not an interceptor: gRPC would go through its chain with every call.
    """
    return grpc.method_handlers_generic_handler(
        SERVICE.full_name,
        {
            method.name: grpc.unary_unary_rpc_method_handler(
                _handler(getattr(service, method.name), method.name, guard),
                # A failure inside gRPC's own deserializing would reach the caller as INTERNAL.
                request_deserializer=partial(_read, GetMessageClass(method.input_type), limits),
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in SERVICE.methods
        },
    )


def _handler(method: Method, name: str, guard: Guard) -> Callable[[Any, Context], Awaitable[Message]]:
    async def call(request: Message | FarrankError, context: Context) -> Message:
        def behave(request: Message) -> Awaitable[Message]:
            remaining_s = context.time_remaining()
            return method(request, None if remaining_s is None else time.monotonic() + remaining_s)

        # gRPC cancels the handler when the caller goes, and when the deadline passes.
        answer = await guard.answer(name, request, behave, context.time_remaining)
        if isinstance(answer, FarrankError):
            hint = () if answer.retry_after_ms is None else ((RETRY_KEY, str(answer.retry_after_ms)),)
            await context.abort(answer.code, answer.message, hint)
        return answer

    return call


def _read(message: type[Message], limits: LimitsConfig, data: bytes) -> Message | FarrankError:
    """Read bytes, or say what the caller is to be told."""
    if len(data) > limits.max_request_bytes:
        return too_large(f"{len(data)} bytes", limits)
    try:
        return message.FromString(data)
    except DecodeError as error:
        return InvalidArgument(f"request: is not a message of this method: {error}")
