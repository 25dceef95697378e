"""The sockets: gRPC with health and reflection, and Prometheus' page."""

import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from farrank_server.config.schema import LimitsConfig, ListenConfig, TlsConfig
from farrank_server.errors import ConfigError
from farrank_server.metrics import Metrics
from farrank_server.service.methods import SERVICE

log = logging.getLogger(__name__)


class GrpcListener:
    """A gRPC server with the standard health service and reflection.

    The port is bound at once, so that a taken one is found before rankers are loaded; calls are answered
    from `open` on. Raises: ConfigError if the address cannot be bound or a certificate cannot be used.
    """

    def __init__(self, config: ListenConfig, limits: LimitsConfig) -> None:
        self.server = grpc.aio.server(
            # The limit of concurrent calls refuses with a reason; this stops what never comes so far.
            maximum_concurrent_rpcs=2 * limits.max_concurrent_calls,
            options=[
                # Twice the limit: a request somewhat too large gets an answer that names the limit.
                ("grpc.max_receive_message_length", min(2 * limits.max_request_bytes, 2**31 - 1)),
                ("grpc.max_send_message_length", -1),
                # Two servers on one port would share its calls without a word.
                ("grpc.so_reuseport", 0),
            ],
        )
        self._health = HealthServicer()
        address = host_and_port(config.host, config.port)
        # gRPC's own words on a busy port or a wrong certificate are many, and say little.
        check_port("listen.port", config.host, config.port)
        credentials = check_tls(config.tls) if config.tls else None
        try:
            if credentials is None:
                self.port = self.server.add_insecure_port(address)
            else:
                self.port = self.server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigError(f"listen: {address} cannot be bound: {error}") from error

    async def open(self, service: grpc.GenericRpcHandler) -> None:
        """Answer calls, and report healthy."""
        self.server.add_generic_rpc_handlers((service,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        reflection.enable_server_reflection(
            (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME), self.server
        )
        await self.server.start()
        await self.report(serving=True)

    async def report(self, *, serving: bool) -> None:
        """Tell load balancers whether to send calls here; `report_not_serving` has the last word."""
        answer = health_pb2.HealthCheckResponse
        for name in ("", SERVICE.full_name):
            await self._health.set(name, answer.SERVING if serving else answer.NOT_SERVING)

    async def report_not_serving(self) -> None:
        """Tell load balancers to go elsewhere; calls are still answered."""
        await self._health.enter_graceful_shutdown()

    async def close(self, grace_s: float) -> None:
        """Accept no more calls; those in flight get `grace_s` to end."""
        await self.server.stop(grace_s)


class MetricsPage:
    """Prometheus' page at /metrics, on threads of its own: a busy event loop must not hide itself."""

    def __init__(self, host: str, port: int, metrics: Metrics) -> None:
        check_port("listen.metrics_port", host, port)
        self._server, self._thread = start_http_server(port, host.strip("[]"), registry=metrics.registry)
        self.url = f"http://{host_and_port(host, self._server.server_port)}/metrics"
        page = self._server.get_app()

        def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if environ["PATH_INFO"] == "/metrics" and page is not None:
                return page(environ, start_response)
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"the metrics are at /metrics\n"]

        # The library's own page answers at every path.
        self._server.set_app(answer)

    def close(self) -> None:
        """Free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def host_and_port(host: str, port: int) -> str:
    """Write an address as gRPC and URLs do: an IPv6 host in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


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


def check_tls(tls: TlsConfig) -> grpc.ServerCredentials:
    """Read certificates, and check that they are some and fit together.

    Raises: ConfigError naming the key, the file and what is wrong with it.
    """
    files = {"certificate": tls.certificate, "private_key": tls.private_key, "client_ca": tls.client_ca}
    contents = {}
    for key, path in files.items():
        try:
            contents[key] = path.read_bytes() if path else None
            if path and key != "private_key":
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
        except ssl.SSLError as error:
            raise ConfigError(f"listen.tls.{key}: {path} holds no PEM certificate") from error
        except OSError as error:
            raise ConfigError(f"listen.tls.{key}: {path} cannot be read: {error.strerror}") from error
    try:
        # Asked for a password, it would wait at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.private_key, password="")
    except ssl.SSLError as error:
        belongs = error.reason != "KEY_VALUES_MISMATCH"
        why = "holds no unencrypted PEM key" if belongs else f"does not belong to {tls.certificate}"
        raise ConfigError(f"listen.tls.private_key: {tls.private_key} {why}") from error
    pair = (contents["private_key"] or b"", contents["certificate"] or b"")
    return grpc.ssl_server_credentials(
        [pair], contents["client_ca"], require_client_auth=tls.client_ca is not None
    )
