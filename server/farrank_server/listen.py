"""The gRPC endpoint with health and reflection, and the binding of all sockets."""

import errno
import logging
import socket
from collections.abc import Callable, Iterable
from ipaddress import ip_address

import grpc
from grpc_health.v1 import health

from farrank_server.access.keys import Keys
from farrank_server.certificates import Certificates
from farrank_server.config.schema import LimitsConfig, ListenConfig
from farrank_server.metrics import Metrics
from farrank_server.service.methods import SERVICE
from farrank_server.wire.handlers import BEYOND_BYTES, places_for_calls
from farrank_server.wire.metadata import MAX_METADATA_BYTES
from farrank_server.wire.standard_services import LIVENESS, ROOM, Health, reflection_handlers, reflections
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

# The part of the service that may be down alone, under its name in the health service.
SEARCHES = f"{SERVICE.full_name}/SearchAndRerank"

# Refusals being sent. They need no room in HTTP/2 and leave at once; connections that do not read them are
# closed.
REFUSALS = 8192

# Streams of one connection, including those that have ended and whose call is not freed yet. gRPC refuses a
# further stream instead of letting it wait, so the limit is above the calls that one caller may have in
# flight (15/16 of `max_concurrent_calls`). Without the limit, 60,000 streams opened and reset at once stall
# the event loop for twelve seconds. With a limit twice as high a flood stalls it twice as long.
MAX_STREAMS = 1000

# A connection that has not finished its handshakes within this time is closed.
HANDSHAKE_S = 10.0

_NO_BOUND = 2**31 - 1

# A bit set of gRPC's compression algorithms. The first bit is "none".
_NO_COMPRESSION = 1

# The bytes of requests that gRPC's core receives on a connection before the server reads them, which it does
# when there is room. By default the core increases this with the speed of the connection, and each request
# that waits for room takes megabytes. A request that is being read may send all of its bytes at once.
WINDOW_BYTES = 512 * 2**10

# How long calls in flight on a connection beyond its maximum age may continue.
AGED_CONNECTION_S = 3600.0


def health_of(ranker: str) -> str:
    """The name of one ranker in the health service."""
    return f"{SERVICE.full_name}/rankers/{ranker}"


def _can_be_mended(record: logging.LogRecord) -> bool:
    """Drop the traceback that gRPC logs when it cannot send because the caller has just gone.

    This happens occasionally at deadlines, for answers and refusals, and the server's code cannot catch it.
    The class has no public name.
    """
    return record.exc_info is None or getattr(record.exc_info[0], "__name__", "") != "ExecuteBatchError"


class GrpcListener:
    """A gRPC server with the standard health service and reflection.

    The constructor binds the port, so that a port in use is found before rankers are loaded. The server
    answers calls after `open`. Raises: ConfigError if the address cannot be bound or a certificate cannot be
    used.
    """

    def __init__(
        self,
        config: ListenConfig,
        limits: LimitsConfig,
        certificates: Certificates | None = None,
        rankers: Iterable[str] = (),
    ) -> None:
        logging.getLogger("grpc._cython.cygrpc").addFilter(_can_be_mended)
        self.server = grpc.aio.server(
            # All places for calls, and refusals not yet sent. Calls are refused before this limit is reached,
            # with a reason and counted; gRPC does neither.
            maximum_concurrent_rpcs=places_for_calls(limits) + ROOM + REFUSALS,
            options=[
                ("grpc.max_receive_message_length", min(limits.max_request_bytes + BEYOND_BYTES, 2**31 - 1)),
                ("grpc.max_send_message_length", -1),
                # Two servers on one port would silently share its calls.
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_permit_without_calls", 1),
                # Load-balancing clients ping every two seconds. A limit for pings is no defense: gRPC spends
                # 4 KB on each ping that it refuses (0.7 GB for 200,000), and 17 bytes on each that it
                # answers.
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                # Beyond this number of calls that have not begun, the core ends further calls of all callers
                # with CANCELLED. Here the server itself refuses calls, by caller.
                ("grpc.server.max_pending_requests", _NO_BOUND),
                ("grpc.server.max_pending_requests_hard_limit", _NO_BOUND),
                # Beyond the first limit the core refuses some calls, beyond the second all.
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
                # The core decompresses a whole message before the server can check it: 1 MB may become 1 GB.
                ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
                ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1000)),
                *_age_options(config.max_connection_age_s),
            ],
        )
        self._health = Health((SERVICE.full_name, SEARCHES), [health_of(ranker) for ranker in rankers])
        self._reflections = reflections()
        address = host_and_port(config.host, config.port)
        # Check the port first: gRPC's messages about a port in use or a wrong certificate are long and
        # unclear.
        check_port("listen.port", config.host, config.port)
        if certificates is None and config.tls is not None:
            certificates = Certificates(config.tls)
        try:
            if certificates is None:
                self.port = self.server.add_insecure_port(address)
            else:
                self.port = self.server.add_secure_port(address, certificates.for_grpc())
        except RuntimeError as error:
            raise ConfigError(f"listen: {address} cannot be bound: {error}") from error

    async def open(self, service: grpc.GenericRpcHandler) -> None:
        """Start to answer calls, and report healthy."""
        reflection = reflection_handlers((SERVICE.full_name,), self._reflections)
        self.server.add_generic_rpc_handlers((service, *reflection))
        # gRPC's core keeps pending calls of registered methods in a separate queue, so that a health check
        # does not wait behind a thousand calls.
        self.server.add_registered_method_handlers(health.SERVICE_NAME, self._health.methods())
        await self.server.start()
        self.report(serving=True)

    def protect(self, keys: Keys) -> None:
        """Report the health of a ranker only to callers whose key may use it."""
        self._health.protect(keys)

    def show_rankers(self, rankers: Iterable[str]) -> None:
        """Report the health of these rankers from now on."""
        self._health.list_unlisted([health_of(ranker) for ranker in rankers])

    def show_open(self, metrics: Metrics) -> None:
        """Show how many health checks, watches and reflection streams are open, and count their refusals."""
        for each in (self._health.checks, self._health.watches, self._reflections):
            each.show(metrics)

    def report_load(self, backlog_s: Callable[[], float]) -> None:
        """Add the device's backlog in seconds, as `backlog_s` returns it, to the answers of health checks."""
        self._health.report_load(backlog_s)

    def report(self, *, serving: bool) -> None:
        """Report to load balancers whether to send calls here. `report_not_serving` overrides it for good."""
        self._health.report(serving=serving)

    def report_searches(self, *, serving: bool) -> None:
        """Report under the service name `SEARCHES` whether indexes can be searched."""
        self._health.report_part(SEARCHES, serving=serving)

    def report_life(self, *, alive: bool) -> None:
        """Report under the service name `LIVENESS` whether this process is alive, also during a drain."""
        self._health.report_part(LIVENESS, serving=alive)

    def is_serving(self, service: str) -> bool:
        """Whether the health service reports SERVING for a service. The empty name means all services."""
        return self._health.is_serving(service)

    def is_followed(self) -> bool:
        """Whether load balancers follow this server's health."""
        return self._health.is_followed()

    def report_not_serving(self) -> None:
        """Report to load balancers that calls should go elsewhere. Calls are still answered."""
        self._health.end()

    async def close(self, grace_s: float) -> None:
        """Accept no more calls. Calls in flight get `grace_s` to finish."""
        await self.server.stop(grace_s)


def _age_options(age_s: float | None) -> list[tuple[str, int]]:
    if age_s is None:
        return []
    return [
        ("grpc.max_connection_age_ms", round(age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", round(AGED_CONNECTION_S * 1000)),
    ]


def host_and_port(host: str, port: int) -> str:
    """Format an address as gRPC and URLs do: an IPv6 host in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host. A name other than localhost could point anywhere."""
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_BIND_PROBLEMS = {
    errno.EADDRINUSE: "another program listens there; choose another port, or 0 for a free one",
    errno.EACCES: "this user may not listen there; ports below 1024 need more rights",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def check_port(key: str, host: str, port: int) -> None:
    """Check that a socket can be bound to an address by binding one for a moment.

    Raises: ConfigError that begins with `key`.
    """
    bound_socket(key, host, port).close()


def bound_socket(key: str, host: str, port: int) -> socket.socket:
    """Bind a socket to an address.

    Raises: ConfigError that begins with `key`.
    """
    address = host_and_port(host, port)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
        except OSError:
            bound.close()
            raise
    except socket.gaierror as error:
        raise ConfigError(f"listen.host: {host!r} is not the name of a host") from error
    except OSError as error:
        why = _BIND_PROBLEMS.get(error.errno or 0, error.strerror)
        raise ConfigError(f"{key}: {address} cannot be bound: {why}") from error
    return bound
