"""The sockets: gRPC with health and reflection, and what all of them are bound by."""

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
from farrank_server.errors import ConfigError
from farrank_server.metrics import Metrics
from farrank_server.service.methods import SERVICE
from farrank_server.wire.handlers import BEYOND_BYTES, places_for_calls
from farrank_server.wire.metadata import MAX_METADATA_BYTES
from farrank_server.wire.standard_services import LIVENESS, ROOM, Health, reflection_handlers, reflections

log = logging.getLogger(__name__)

# The part of the service that may be down while the rest is not, as the health service calls it.
SEARCHES = f"{SERVICE.full_name}/SearchAndRerank"

# Refusals on their way. They need no room in HTTP/2 and leave at once; connections that do not take them end.
REFUSALS = 8192

# Streams of one connection, those included that have ended and whose call is not freed yet. gRPC refuses a
# further stream, and does not let it wait, so this lies above the calls that one caller may have in flight
# (15/16 of `max_concurrent_calls`). Without this bound, 60,000 streams that are opened and reset at once
# stall the event loop for twelve seconds; with twice as many streams a flood takes it twice as long.
MAX_STREAMS = 1000

# A connection that has not finished its handshakes within this time is ended.
HANDSHAKE_S = 10.0

_NO_BOUND = 2**31 - 1

# gRPC's set of compression algorithms, of which the first bit is "none".
_NO_COMPRESSION = 1

# Bytes of requests that gRPC's core takes on a connection before the server reads them, as it does when
# there is room. Left to itself, the core enlarges this with the speed of the connection, and requests that
# wait for room take megabytes each. A request that is read may send all of its bytes at once.
WINDOW_BYTES = 512 * 2**10

# What a connection beyond its age still carries may go on for so long.
AGED_CONNECTION_S = 3600.0


def health_of(ranker: str) -> str:
    """What the health service calls one ranker."""
    return f"{SERVICE.full_name}/rankers/{ranker}"


def _can_be_mended(record: logging.LogRecord) -> bool:
    """Drop a traceback of gRPC's: what it was given to send, it could not, for the caller has just gone.

    That happens at every deadline now and then, to answers and refusals alike, and nobody can catch it there.
    The class has no public name.
    """
    return record.exc_info is None or getattr(record.exc_info[0], "__name__", "") != "ExecuteBatchError"


class GrpcListener:
    """A gRPC server with the standard health service and reflection.

    The port is bound at once, so that a taken one is found before rankers are loaded; calls are answered
    from `open` on. Raises: ConfigError if the address cannot be bound or a certificate cannot be used.
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
            # All places, and refusals that have not left yet. Calls are refused before this is reached, with
            # a reason and counted; gRPC does neither.
            maximum_concurrent_rpcs=places_for_calls(limits) + ROOM + REFUSALS,
            options=[
                ("grpc.max_receive_message_length", min(limits.max_request_bytes + BEYOND_BYTES, 2**31 - 1)),
                ("grpc.max_send_message_length", -1),
                # Two servers on one port would share its calls without a word.
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_permit_without_calls", 1),
                # Clients that balance ping every two seconds. A limit for pings is no defence: gRPC spends
                # 4 KB on each that it refuses, 0.7 GB on 200,000, and 17 bytes on each that it answers.
                ("grpc.http2.max_ping_strikes", 0),
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                # Beyond a bound of calls that have not begun, whoever made them, the core ends further calls
                # of all callers with CANCELLED. Here calls are refused by caller.
                ("grpc.server.max_pending_requests", _NO_BOUND),
                ("grpc.server.max_pending_requests_hard_limit", _NO_BOUND),
                # Beyond the first the core refuses some calls, beyond the second all.
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
                # The core unpacks a whole message before anybody can look at it: 1 MB may become 1 GB.
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
        # gRPC's own words on a busy port or a wrong certificate are many, and say little.
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
        """Answer calls, and report healthy."""
        reflection = reflection_handlers((SERVICE.full_name,), self._reflections)
        self.server.add_generic_rpc_handlers((service, self._health.handlers(), *reflection))
        # gRPC's core keeps calls that have not begun in a queue, and those of a registered method in another:
        # a health check does not wait behind a thousand calls. grpcio before 1.84 ignores what is registered,
        # and looks into the handlers above.
        self.server.add_registered_method_handlers(health.SERVICE_NAME, self._health.methods())
        await self.server.start()
        self.report(serving=True)

    def protect(self, keys: Keys) -> None:
        """Tell the health of a ranker only to callers whose key may use it."""
        self._health.protect(keys)

    def show_open(self, metrics: Metrics) -> None:
        """Show how many health checks, watches and reflection streams are open, and count refusals."""
        for each in (self._health.checks, self._health.watches, self._reflections):
            each.show(metrics)

    def report_load(self, backlog_s: Callable[[], float]) -> None:
        """Have health checks carry for how many seconds the device has work, as `backlog_s` returns it."""
        self._health.report_load(backlog_s)

    def report(self, *, serving: bool) -> None:
        """Tell load balancers whether to send calls here; `report_not_serving` has the last word."""
        self._health.report(serving=serving)

    def report_searches(self, *, serving: bool) -> None:
        """Tell who asks for the health of `SEARCHES` alone whether indexes can be searched."""
        self._health.report_part(SEARCHES, serving=serving)

    def report_life(self, *, alive: bool) -> None:
        """Tell who asks for `LIVENESS` whether this process may go on; a drain does not change that."""
        self._health.report_part(LIVENESS, serving=alive)

    def is_serving(self, service: str) -> bool:
        """Whether the health service says SERVING of a service; the empty name is all of them."""
        return self._health.is_serving(service)

    def is_followed(self) -> bool:
        """Whether load balancers follow this server's health."""
        return self._health.is_followed()

    def report_not_serving(self) -> None:
        """Tell load balancers to go elsewhere; calls are still answered."""
        self._health.end()

    async def close(self, grace_s: float) -> None:
        """Accept no more calls; those in flight get `grace_s` to end."""
        await self.server.stop(grace_s)


def _age_options(age_s: float | None) -> list[tuple[str, int]]:
    if age_s is None:
        return []
    return [
        ("grpc.max_connection_age_ms", round(age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", round(AGED_CONNECTION_S * 1000)),
    ]


def host_and_port(host: str, port: int) -> str:
    """Write an address as gRPC and URLs do: an IPv6 host in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host. A name other than localhost could point anywhere."""
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
    """Check that an address can be listened at, by doing so for a moment.

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
