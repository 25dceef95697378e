"""Transports of calls: a gRPC channel, or in an application's tests a stand-in (see `testing`)."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import grpc
from google.protobuf.message import Message

from farrank_client.calls import SERVICE, Response, UnaryCall
from farrank_client.destination import Destination, destination
from farrank_client.errors import from_grpc

ChannelOption = tuple[str, str | int]

# Seconds between pings; "auto" depends on the target, None sends none.
Keepalive = float | Literal["auto"] | None

# Repeats a call's timeout for servers behind a proxy that does not forward gRPC's own, such as Ray Serve's.
# Farrank's own server reads gRPC's.
TIMEOUT_KEY = "farrank-timeout-ms"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for TLS: the trusted authorities (None: gRPC's default roots), and with mTLS the certificate.

    `server_name` is the name to expect in the server's certificate if it differs from the address.
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


def key_metadata(api_key: str) -> tuple[str, str]:
    """Make the metadata that sends an API key. Raises: ValueError if it cannot be one, without quoting it."""
    if not (api_key and api_key.isascii() and api_key.isprintable() and " " not in api_key):
        raise ValueError("api_key: must be a key as farrank keys new prints it, without spaces or line ends")
    return ("authorization", f"Bearer {api_key}")


def _trace_context() -> Metadata:
    """The application's current trace, as its propagators write it (by default W3C's `traceparent`).

    Empty if the application has not imported OpenTelemetry, because then it does not trace.
    """
    if "opentelemetry.trace" not in sys.modules:
        return ()
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple((name.lower(), value) for name, value in carrier.items())


class Transport(Protocol):
    """Sends one attempt of a call and raises `FarrankError` if it fails."""

    def call(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Send the request and wait for the response."""

    def close(self) -> None:
        """Cancel calls in flight and close the connection."""


class AsyncTransport(Protocol):
    """The same for asyncio; cancelling the task cancels the call on the server, too."""

    async def call_async(
        self, method: str, request: Message, response_type: type[Response], *, timeout_s: float
    ) -> Response:
        """Send the request and wait for the response."""

    async def close_async(self) -> None:
        """Cancel calls in flight and close the connection."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of channels to a destination, and the metadata of each call."""

    place: Destination
    credentials: grpc.ChannelCredentials | None
    options: tuple[ChannelOption, ...]
    metadata: Metadata
    health_service: str
    is_chosen_from: bool

    def channel(self, channels: Any, address: str | None = None) -> Any:
        """Open a channel with `channels` (grpc or grpc.aio), to one address or to the whole target."""
        target = self.place.target if address is None else address
        options = list(self.options)
        if self.credentials is None:
            return channels.insecure_channel(target, options)
        return channels.secure_channel(target, self.credentials, options)


def set_up(
    target: str | Sequence[str],
    tls: Tls | None,
    credentials: grpc.ChannelCredentials | None,
    metadata: Metadata,
    keepalive_s: Keepalive,
    health_service: str | None,
    options: Sequence[ChannelOption],
) -> Setup:
    """Read a client's arguments; `options` are the channel's, and override ours.

    With a service config or policy among the options gRPC shares the calls, as these say.
    Raises: ValueError for both `tls` and `credentials`, for an invalid `target`, or for addresses with a
    `tls` that has no `server_name`; OSError if a file of `tls` cannot be read.
    """
    place = destination(target)
    if tls is not None and credentials is not None:
        raise ValueError("give either tls or credentials, not both")
    given = dict(options)
    is_chosen_from = place.is_chosen_from and not {"grpc.service_config", "grpc.lb_policy_name"} & set(given)
    every_option: dict[str, str | int] = {
        # Documents are long: only the server limits messages, instead of gRPC's 4 MB on this side.
        "grpc.max_send_message_length": -1,
        "grpc.max_receive_message_length": -1,
        # A call's retries are enough to reconnect to a restarted server.
        "grpc.initial_reconnect_backoff_ms": 100,
        "grpc.max_reconnect_backoff_ms": 5000,
    }
    if not is_chosen_from:
        every_option |= place.options(health_service)
    elif place.name is not None:
        # The channel is to an address, but certificates and a proxy's routes are for the name.
        every_option["grpc.default_authority"] = place.target.partition(":")[2].lstrip("/")
        every_option["grpc.ssl_target_name_override"] = place.name[0]
    if keepalive := place.keepalive_s(keepalive_s):
        time_s, timeout_s = keepalive
        every_option["grpc.keepalive_time_ms"] = round(time_s * 1000)
        every_option["grpc.keepalive_timeout_ms"] = round(timeout_s * 1000)
        # This one bounds the wait for a ping's answer, not the option above (gRPC 1.80).
        every_option["grpc.http2.ping_timeout_ms"] = round(timeout_s * 1000)
        # By default gRPC stops after two pings without other traffic, as during a long wait.
        every_option["grpc.http2.max_pings_without_data"] = 0
    if tls is not None:
        credentials = tls.credentials()
        if tls.server_name is not None:
            every_option["grpc.ssl_target_name_override"] = tls.server_name
        elif not place.names_servers:
            raise ValueError(
                "tls: several addresses have no name to check certificates against; give server_name"
            )
    chosen = tuple((every_option | given).items())
    service = SERVICE if health_service is None else health_service
    return Setup(place, credentials, chosen, tuple(metadata), service, is_chosen_from)


class OverGrpc:
    """A gRPC channel and its methods; `_channels` opens it, for threads or for asyncio."""

    _channels: ClassVar[Any]

    def __init__(self, setup: Setup, address: str | None = None) -> None:
        self._channel = setup.channel(self._channels, address)
        self._metadata = setup.metadata
        self._methods: dict[str, Any] = {}

    def method(self, method: str, request: Message, response_type: type[Message]) -> Any:
        """Make gRPC's callable for a method, or return the existing one."""
        if method not in self._methods:
            to_bytes, from_bytes = type(request).SerializeToString, response_type.FromString
            self._methods[method] = self._channel.unary_unary(method, to_bytes, from_bytes)
        return self._methods[method]

    def every_call(self, timeout_s: float) -> dict[str, Any]:
        """The arguments of every gRPC call besides its request."""
        within = (TIMEOUT_KEY, str(max(0, round(timeout_s * 1000))))
        return {"timeout": timeout_s, "metadata": (*self._metadata, within, *_trace_context())}

    def _start(self, method: str, request: Message, response_type: type[Message], timeout_s: float) -> Any:
        """Start a call; returns the response, or with asyncio an awaitable of it."""
        return self.method(method, request, response_type)(request, **self.every_call(timeout_s))


class GrpcTransport(OverGrpc):
    """Sends calls over a gRPC channel."""

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

    def start(self, call: UnaryCall[Any, Any], *, timeout_s: float) -> Any:
        """Start a call; returns gRPC's future of the response."""
        method = self.method(call.method, call.request, call.response_type)
        return method.future(call.request, **self.every_call(timeout_s))

    def close(self) -> None:
        """Cancel calls in flight and close the connection."""
        self._channel.close()


class AsyncGrpcTransport(OverGrpc):
    """Sends calls over an asyncio gRPC channel."""

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

    def start(self, call: UnaryCall[Any, Any], *, timeout_s: float) -> Any:
        """Start a call; returns an awaitable of the response."""
        return self._start(call.method, call.request, call.response_type, timeout_s)

    async def close_async(self) -> None:
        """Cancel calls in flight and close the connection."""
        await self._channel.close()
