"""Prometheus' page and Kubernetes' probes, on threads of its own: a busy event loop must not hide itself.

Whoever sends half a request, or reads no answer, has a thread until it is late or others want it. Connections
beyond the most end the oldest one: a scrape takes milliseconds, what stays longer is none.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client import make_wsgi_app

from farrank_server.access.token_file import TokenFile
from farrank_server.listen import bound_socket, host_and_port
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

# Prometheus keeps one connection, and there may be several of it; people come beside.
MOST_CONNECTIONS = 16

# From its first byte to its last; Prometheus' own default is 10 s.
CONNECTION_S = 15.0

# Connections that wait to be taken.
BACKLOG = 128


# An answer of a probe's that takes longer is a no: what it asks about hangs.
PROBE_S = 2.0

# Says yes or no, perhaps by asking another thread. Raises: TimeoutError if that does not answer.
Probe = Callable[[], bool]


class MetricsPage:
    """The page at /metrics, with a `token` for those who show it; and probes at their paths, for everybody.

    A probe that says no is answered with 503. Raises: ConfigError if the address cannot be bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Metrics,
        token: TokenFile | None = None,
        probes: Mapping[str, Probe] | None = None,
    ) -> None:
        app, asked_for, asked = make_wsgi_app(metrics.registry), token, probes or {}

        class Scrape(_Scrape):
            page = staticmethod(app)
            token = asked_for
            probes = asked

        self._server = _Server(bound_socket("listen.metrics_port", host, port), Scrape)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="farrank-metrics", daemon=True
        )
        self._thread.start()
        self.url = f"http://{host_and_port(host, self._server.server_address[1])}/metrics"

    def close(self) -> None:
        """Free the port, and end what is still connected."""
        self._server.shutdown()
        self._server.server_close()
        self._server.end_older_than(0)
        self._thread.join()


class _Scrape(BaseHTTPRequestHandler):
    """One request; `page` is prometheus_client's application, `token` what it asks for, if anything."""

    page: Any
    token: TokenFile | None
    probes: Mapping[str, Probe]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        plain = [("Content-Type", "text/plain")]
        if probe := self.probes.get(path):
            try:
                status, word = (
                    (HTTPStatus.OK, b"yes\n") if probe() else (HTTPStatus.SERVICE_UNAVAILABLE, b"no\n")
                )
            except TimeoutError:
                status, word = HTTPStatus.SERVICE_UNAVAILABLE, b"no: the server does not answer\n"
            self._answer(status, plain, word)
            return
        if path != "/metrics":
            paths = ", ".join(("/metrics", *self.probes))
            self._answer(HTTPStatus.NOT_FOUND, plain, f"here are {paths}\n".encode())
            return
        if self.token is not None and not self.token.is_shown_by(self.headers.get("Authorization")):
            self._answer(
                HTTPStatus.UNAUTHORIZED,
                [("Content-Type", "text/plain"), ("WWW-Authenticate", 'Bearer realm="farrank metrics"')],
                b"the metrics need the token of listen.metrics_token_file\n",
            )
            return
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "HTTP_ACCEPT": self.headers.get("Accept"),
            "HTTP_ACCEPT_ENCODING": self.headers.get("Accept-Encoding"),
        }
        told: list[tuple[str, str]] = []
        body = b"".join(self.page(environ, lambda _, headers: told.extend(headers)))
        self._answer(HTTPStatus.OK, told, body)

    def _answer(self, status: HTTPStatus, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        # Without its length, half a page would look like a whole one.
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Say nothing of Python's version."""
        return "farrank"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a scrape comes every few seconds."""


class _Server(ThreadingTCPServer):
    """A thread a connection, of which there are so many and for so long."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def __init__(self, bound: socket.socket, handler: type[_Scrape]) -> None:
        super().__init__(bound.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_address = bound.getsockname()
        # Each with the time at which it was taken, the oldest first.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self.server_activate()

    def end_older_than(self, seconds: float) -> None:
        """End what has been connected for longer."""
        now_s = time.monotonic()
        with self._lock:
            for each, since_s in self._open.items():
                if now_s - since_s >= seconds:
                    _end(each)

    def service_actions(self) -> None:
        """Between two connections, and twice a second: end what is late."""
        self.end_older_than(CONNECTION_S)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, in the place of the oldest where there are too many."""
        with self._lock:
            for each in list(self._open)[: max(0, len(self._open) + 1 - MOST_CONNECTIONS)]:
                _end(each)
                # Its thread has nothing to wait for any more, and ends.
                del self._open[each]
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is done."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong, unless the connection did."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        log.log(level, "a scrape failed", exc_info=True)


def _end(connection: socket.socket) -> None:
    """End a connection that a thread reads or writes: it sees that at once, while a close it would not."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("a connection had ended before", exc_info=True)
