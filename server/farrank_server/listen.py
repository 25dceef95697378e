"""The sockets: gRPC with health and reflection, and Prometheus' page."""

import logging
from http.server import HTTPServer

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from farrank_server.config.schema import LimitsConfig, ListenConfig, TlsConfig
from farrank_server.errors import ConfigError
from farrank_server.metrics import Metrics
from farrank_server.wire.guard import SERVICE

log = logging.getLogger(__name__)


class GrpcListener:
    """A gRPC server with the standard health service and reflection.

    The port is bound at once, so that a taken one is found before rankers are loaded; calls are taken
    from `open` on. Raises: ConfigError if the address cannot be bound or a certificate cannot be read.
    """

    def __init__(self, config: ListenConfig, limits: LimitsConfig) -> None:
        self.server = grpc.aio.server(
            # The gate refuses with a reason; this stops those that never come so far.
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
        credentials = _credentials(config.tls) if config.tls else None
        try:
            if credentials is None:
                self.port = self.server.add_insecure_port(address)
            else:
                self.port = self.server.add_secure_port(address, credentials)
        except RuntimeError as error:
            # gRPC says the same of a certificate that is none.
            causes = "listen.port" if credentials is None else "listen.port or listen.tls"
            raise ConfigError(f"{causes}: {address} cannot be bound: {error}") from error

    async def open(self, service: grpc.GenericRpcHandler) -> None:
        """Take calls, and report healthy."""
        self.server.add_generic_rpc_handlers((service,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        reflection.enable_server_reflection(
            (SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME), self.server
        )
        await self.server.start()
        for name in ("", SERVICE.full_name):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def report_not_serving(self) -> None:
        """Tell load balancers to go elsewhere; calls are still taken."""
        await self._health.enter_graceful_shutdown()

    async def close(self, grace_s: float) -> None:
        """Take no calls any more; those in flight get `grace_s` to end."""
        await self.server.stop(grace_s)


class MetricsPage:
    """Prometheus' page, on a thread of its own so that a busy event loop cannot hide itself."""

    def __init__(self, config: ListenConfig, metrics: Metrics) -> None:
        self._server: HTTPServer | None = None
        self.port: int | None = None
        if config.metrics_port is None:
            return
        try:
            self._server, self._thread = start_http_server(
                config.metrics_port, config.host.strip("[]"), registry=metrics.registry
            )
        except OSError as error:
            address = host_and_port(config.host, config.metrics_port)
            raise ConfigError(f"listen.metrics_port: {address} cannot be bound: {error}") from error
        self.port = self._server.server_port

    def close(self) -> None:
        """Free the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def host_and_port(host: str, port: int) -> str:
    """Write an address as gRPC and URLs do: an IPv6 host in brackets."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    try:
        pair = (tls.private_key.read_bytes(), tls.certificate.read_bytes())
        client_ca = tls.client_ca.read_bytes() if tls.client_ca else None
    except OSError as error:
        raise ConfigError(f"listen.tls: {error.filename} cannot be read: {error.strerror}") from error
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)
