"""The HTTP socket, served by uvicorn in the event loop that gRPC runs in."""

import asyncio
import logging
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from farrank_server.certificates import Certificates
from farrank_server.config.schema import LimitsConfig, ListenConfig
from farrank_server.http.accepting import Acceptor
from farrank_server.http.application import HttpApplication
from farrank_server.http.connection import Connection, Rules
from farrank_server.listen import bound_socket, host_and_port
from farrank_server.metrics import Metrics

# Limit on connections that wait to be accepted while the event loop is busy.
BACKLOG = 2048


class HttpListener:
    """An HTTP server. The port is bound at once, as gRPC's is; calls are answered after `open`.

    Raises: ConfigError if the address cannot be bound or a certificate cannot be used.
    """

    def __init__(
        self, config: ListenConfig, limits: LimitsConfig, certificates: Certificates | None = None
    ) -> None:
        port = config.http.port
        assert port is not None, "no HTTP is configured"
        self._config = config
        if certificates is None and config.tls is not None:
            certificates = Certificates(config.tls)
        self._certificates = certificates
        self._rules = Rules(config.max_connection_age_s, limits.max_request_bytes)
        self._socket = bound_socket("listen.http.port", config.host, port)
        # Two sockets that are bound and do not listen yet could share a port.
        self._socket.listen(BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        self._metrics = Metrics()
        self._opened: tuple[HttpApplication, _Server, asyncio.Task[None]] | None = None

    @property
    def url(self) -> str:
        """The URL of the endpoint."""
        scheme = "https" if self._config.tls else "http"
        return f"{scheme}://{host_and_port(self._config.host, self.port)}"

    def show_open(self, metrics: Metrics) -> None:
        """Export the number of open connections, and count those that are ended or refused."""
        self._metrics = metrics
        self._rules.count_end = lambda why: metrics.http_connections_ended.labels(why).inc()

    async def open(self, application: HttpApplication) -> None:
        """Answer calls, and report healthy."""
        certificates = self._certificates
        server = _Server(
            self._rules,
            self._metrics,
            uvicorn.Config(
                application,
                http="h11",
                ws="none",
                lifespan="off",
                interface="asgi3",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                # uvicorn logs a warning for each malformed request, without a rate limit.
                log_level=logging.ERROR,
                ssl_context_factory=None if certificates is None else lambda *_: certificates.for_http(),
            ),
        )
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        listening = asyncio.create_task(server.listening.wait())
        await asyncio.wait((serving, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if serving.done():
            serving.result()
        self._opened = application, server, serving
        self.report(serving=True)

    def report(self, *, serving: bool) -> None:
        """Tell load balancers whether to send calls here; after `report_not_serving` always not."""
        if self._opened:
            self._opened[0].serving = serving and not self._rules.is_draining

    def report_not_serving(self) -> None:
        """Tell load balancers, and each caller with its next answer, to go elsewhere; still answer calls."""
        self._rules.is_draining = True
        self.report(serving=False)

    def is_followed(self) -> bool:
        """Whether a connection is open, or anyone has asked for the health lately."""
        if self._opened is None:
            return False
        application, server, _ = self._opened
        return bool(server.server_state.connections) or application.is_followed()

    def end_idle(self) -> None:
        """End connections that have had their answers and send no request."""
        if self._opened is not None:
            self._opened[1].end_idle()

    async def close(self, grace_s: float) -> None:
        """Accept no more calls; those in flight get `grace_s` to end."""
        if self._opened is None:
            self._socket.close()
            return
        application, server, serving = self._opened
        server.config.timeout_graceful_shutdown = math.ceil(grace_s)
        server.should_exit = True
        await serving
        assert server.acceptor is not None
        server.acceptor.abort()
        application.close()


class _Server(uvicorn.Server):
    """uvicorn's server with our connections. It leaves signals alone and sets `listening` when it listens."""

    def __init__(self, rules: Rules, metrics: Metrics, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._rules = rules
        self._metrics = metrics
        self.acceptor: Acceptor | None = None
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None, "the port is bound already"
        (listening,) = sockets

        def connection() -> Connection:
            return Connection(self.config, self.server_state, self._rules)

        self.acceptor = Acceptor(listening, self.config.ssl, connection, self._metrics)
        # The acceptor has the methods that uvicorn calls on a server.
        self.servers = [self.acceptor]  # type: ignore[list-item]
        self.started = True
        self.listening.set()

    def end_idle(self) -> None:
        for each in list(self.server_state.connections):
            if isinstance(each, Connection) and each.is_idle:
                each.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
