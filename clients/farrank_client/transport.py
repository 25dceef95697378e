"""What carries a call: gRPC, or in an application's tests a stand-in (see `testing`)."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from farrank_client.calls import Response
from farrank_client.errors import from_status

Metadata = Sequence[tuple[str, str | bytes]]


class Transport(Protocol):
    """Carries one attempt of a call and raises `FarrankError` where it fails."""

    def call(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Send the request and wait for the response."""

    def close(self) -> None:
        """End what is in flight and let go of the connection."""


class AsyncTransport(Protocol):
    """The same for asyncio; cancelling the task cancels the call on the server, too."""

    async def call_async(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Send the request and wait for the response."""

    async def close_async(self) -> None:
        """End what is in flight and let go of the connection."""


class GrpcTransport:
    """Carries calls over a gRPC channel, which it owns from then on."""

    def __init__(self, channel: grpc.Channel, metadata: Metadata = ()) -> None:
        self._channel = channel
        self._metadata = tuple(metadata)
        self._methods: dict[str, Callable[..., Any]] = {}

    def call(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Send the request and wait for the response."""
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(
                method, request_serializer=_serialize, response_deserializer=response_type.FromString
            )
        try:
            response: Response = self._methods[method](request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            # What a synchronous call raises is a grpc.Call, too, though its declared type does not say so.
            call: Any = error
            raise from_status(call.code(), call.details(), call.trailing_metadata() or ()) from error
        return response

    def close(self) -> None:
        """End what is in flight and let go of the connection."""
        self._channel.close()


class AsyncGrpcTransport:
    """Carries calls over an asyncio gRPC channel, which it owns from then on."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata = ()) -> None:
        self._channel = channel
        self._metadata = tuple(metadata)
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {}

    async def call_async(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Send the request and wait for the response."""
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(
                method, request_serializer=_serialize, response_deserializer=response_type.FromString
            )
        try:
            response: Response = await self._methods[method](
                request, timeout=timeout_s, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise from_status(error.code(), error.details() or "", error.trailing_metadata()) from error
        return response

    async def close_async(self) -> None:
        """End what is in flight and let go of the connection."""
        await self._channel.close()


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()
