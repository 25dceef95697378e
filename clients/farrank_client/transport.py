"""What carries a call.

A gRPC channel and how it is made, or in an application's tests a stand-in (see `testing`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import grpc
from google.protobuf.message import Message

from farrank_client.calls import Response
from farrank_client.errors import from_grpc

ChannelOption = tuple[str, str | int]

# A gRPC server that is not told otherwise ends connections that ping more often than every five minutes.
KEEPALIVE_S = 310.0


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for TLS: whom to trust (None: gRPC's default roots), and what to show a server with mTLS.

    `server_name` is the name to expect in the server's certificate where it is not the address's own.
    """

    ca: Path | str | None = None
    certificate: Path | str | None = None
    private_key: Path | str | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files.

        Raises: OSError if one cannot be read; ValueError if only one of certificate and key is given.
        """
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("tls: certificate and private_key are given together or not at all")
        files = (self.ca, self.private_key, self.certificate)
        return grpc.ssl_channel_credentials(
            *(None if file is None else Path(file).read_bytes() for file in files)
        )


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


class _OverGrpc:
    """A gRPC channel, from threads or from asyncio as `_channels` opens it, and its methods.

    `options` are the channel's, and win over ours. Raises: ValueError for both `tls` and `credentials`, or
    for a URL as `target`; OSError if a file of `tls` cannot be read.
    """

    _channels: ClassVar[Any]

    def __init__(
        self,
        target: str,
        tls: Tls | None,
        credentials: grpc.ChannelCredentials | None,
        metadata: Metadata,
        keepalive_s: float | None,
        options: Sequence[ChannelOption],
    ) -> None:
        scheme, separator, rest = target.partition("://")
        if separator and scheme.lower() in ("http", "https"):
            address = rest.partition("/")[0]
            hint = ", and ask for TLS if that port speaks it" if scheme.lower() == "https" else ""
            raise ValueError(f"target: {target!r} is a URL; give HOST:PORT, here {address!r}{hint}")
        if tls is not None and credentials is not None:
            raise ValueError("give either tls or credentials, not both")
        every_option: dict[str, str | int] = {
            # Long documents: gRPC's 4 MB limit is the server's to set, never a surprise on this side.
            "grpc.max_send_message_length": -1,
            "grpc.max_receive_message_length": -1,
            # A server that was restarted is found again within a call's own retries.
            "grpc.initial_reconnect_backoff_ms": 100,
            "grpc.max_reconnect_backoff_ms": 5000,
        }
        if keepalive_s is not None:
            every_option["grpc.keepalive_time_ms"] = round(keepalive_s * 1000)
            every_option["grpc.keepalive_timeout_ms"] = 20_000
        if tls is not None:
            credentials = tls.credentials()
            if tls.server_name is not None:
                every_option["grpc.ssl_target_name_override"] = tls.server_name
        chosen = list((every_option | dict(options)).items())
        if credentials is None:
            self._channel = self._channels.insecure_channel(target, chosen)
        else:
            self._channel = self._channels.secure_channel(target, credentials, chosen)
        self._metadata = tuple(metadata)
        self._methods: dict[str, Callable[..., Any]] = {}

    def _start(self, method: str, request: Message, response_type: type[Message], timeout_s: float) -> Any:
        """Start a call; returns the response, or with asyncio what to await for it."""
        if method not in self._methods:
            to_bytes, from_bytes = type(request).SerializeToString, response_type.FromString
            self._methods[method] = self._channel.unary_unary(method, to_bytes, from_bytes)
        return self._methods[method](request, timeout=timeout_s, metadata=self._metadata)


class GrpcTransport(_OverGrpc):
    """Carries calls over a gRPC channel."""

    _channels: ClassVar[Any] = grpc

    def call(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Send the request and wait for the response."""
        try:
            response: Response = self._start(method, request, response_type, timeout_s)
        except grpc.RpcError as error:
            raise from_grpc(error) from error
        return response

    def close(self) -> None:
        """End what is in flight and let go of the connection."""
        self._channel.close()


class AsyncGrpcTransport(_OverGrpc):
    """Carries calls over an asyncio gRPC channel."""

    _channels: ClassVar[Any] = grpc.aio

    async def call_async(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Send the request and wait for the response."""
        try:
            response: Response = await self._start(method, request, response_type, timeout_s)
        except grpc.RpcError as error:
            raise from_grpc(error) from error
        return response

    async def close_async(self) -> None:
        """End what is in flight and let go of the connection."""
        await self._channel.close()
