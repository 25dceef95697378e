"""Prometheus' page and Kubernetes' probes, on separate threads so that a busy event loop stays visible.

A client that sends half a request, or reads no answer, keeps a thread until its time is over or another
connection needs the thread. A connection beyond the limit closes the oldest one: a scrape takes milliseconds,
so the oldest connection is not a scrape.
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

# Prometheus keeps one connection. There may be several of it, in addition to people's.
MAX_CONNECTIONS = 16

# The longest time of a connection; Prometheus' own default is 10 s.
CONNECTION_S = 15.0

# Connections that wait to be accepted.
BACKLOG = 128


# A probe that gets no answer within this time counts as failed.
PROBE_S = 2.0

# Returns yes or no, perhaps after asking another thread. Raises: TimeoutError if that does not answer.
Probe = Callable[[], bool]


class MetricsPage:
    """The page at /metrics, which requires `token` if given, and probes at their paths without a token.

    A failed probe is answered with 503. Raises: ConfigError if the address cannot be bound.
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
        """Free the port and close all connections."""
        self._server.shutdown()
        self._server.server_close()
        self._server.end_older_than(0)
        self._thread.join()


class _Scrape(BaseHTTPRequestHandler):
    """One request. `page` is prometheus_client's application, `token` the required token, if any."""

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
            self._answer(HTTPStatus.NOT_FOUND, plain, f"available paths: {paths}\n".encode())
            return
        if self.token is not None and not self.token.is_shown_by(self.headers.get("Authorization")):
            self._answer(
                HTTPStatus.UNAUTHORIZED,
                [("Content-Type", "text/plain"), ("WWW-Authenticate", 'Bearer realm="farrank metrics"')],
                b"the metrics require the token of listen.metrics_token_file\n",
            )
            return
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "HTTP_ACCEPT": self.headers.get("Accept"),
            "HTTP_ACCEPT_ENCODING": self.headers.get("Accept-Encoding"),
        }
        page_headers: list[tuple[str, str]] = []
        body = b"".join(self.page(environ, lambda _, headers: page_headers.extend(headers)))
        self._answer(HTTPStatus.OK, page_headers, body)

    def _answer(self, status: HTTPStatus, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        # Without Content-Length, a truncated page would look complete.
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Hide Python's version."""
        return "farrank"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a scrape comes every few seconds."""


class _Server(ThreadingTCPServer):
    """One thread per connection, bounded in number and time."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = BACKLOG

    def __init__(self, bound: socket.socket, handler: type[_Scrape]) -> None:
        super().__init__(bound.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_address = bound.getsockname()
        # Each connection with the time at which it was accepted, the oldest first.
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self.server_activate()

    def end_older_than(self, seconds: float) -> None:
        """Close connections that are older than this."""
        now_s = time.monotonic()
        with self._lock:
            for each, since_s in self._open.items():
                if now_s - since_s >= seconds:
                    _end(each)

    def service_actions(self) -> None:
        """Close late connections. `socketserver` calls this between connections and twice a second."""
        self.end_older_than(CONNECTION_S)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Accept a connection, and close the oldest one if there are too many."""
        with self._lock:
            for each in list(self._open)[: max(0, len(self._open) + 1 - MAX_CONNECTIONS)]:
                _end(each)
                # Its thread then ends, because reads and writes return at once.
                del self._open[each]
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a finished connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error; at level DEBUG if the connection failed."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        log.log(level, "a scrape failed", exc_info=True)


def _end(connection: socket.socket) -> None:
    """Shut down a connection that a thread reads or writes. The thread would not notice a mere close."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        log.debug("a connection had ended before", exc_info=True)
