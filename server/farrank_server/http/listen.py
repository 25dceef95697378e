"""The HTTP socket, served by uvicorn in the event loop that gRPC runs in."""

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from farrank_server.config.schema import ListenConfig
from farrank_server.http.door import HttpDoor
from farrank_server.listen import bound_socket, check_tls, host_and_port

# Longer than clients keep an idle connection: a server that closes first makes some of their calls fail.
KEEP_ALIVE_S = 75

# Connections that wait to be taken while the event loop is busy.
BACKLOG = 2048


class HttpListener:
    """An HTTP server. The port is bound at once, as gRPC's is; calls are answered from `open` on.

    Raises: ConfigError if the address cannot be bound or a certificate cannot be used.
    """

    def __init__(self, config: ListenConfig) -> None:
        port = config.http.port
        assert port is not None, "no HTTP is configured"
        self._config = config
        if config.tls:
            check_tls(config.tls)
        self._socket = bound_socket("listen.http.port", config.host, port)
        # Two that are bound and do not listen yet could have the same port.
        self._socket.listen(BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        self._opened: tuple[HttpDoor, _Server, asyncio.Task[None]] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        scheme = "https" if self._config.tls else "http"
        return f"{scheme}://{host_and_port(self._config.host, self.port)}"

    async def open(self, door: HttpDoor) -> None:
        """Answer calls, and report healthy."""
        server = _Server(
            uvicorn.Config(
                door,
                http="h11",
                ws="none",
                lifespan="off",
                interface="asgi3",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                log_level=logging.WARNING,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                **self._tls(),
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        listening = asyncio.create_task(server.listening.wait())
        await asyncio.wait((serving, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if serving.done():
            serving.result()
        self._opened = door, server, serving
        self.report(serving=True)

    def report(self, *, serving: bool) -> None:
        """Tell load balancers whether to send calls here."""
        if self._opened:
            self._opened[0].serving = serving

    async def close(self, grace_s: float) -> None:
        """Accept no more calls; those in flight get `grace_s` to end."""
        if self._opened is None:
            self._socket.close()
            return
        door, server, serving = self._opened
        server.config.timeout_graceful_shutdown = math.ceil(grace_s)
        server.should_exit = True
        await serving
        door.close()

    def _tls(self) -> dict[str, Any]:
        tls = self._config.tls
        if tls is None:
            return {}
        return {
            "ssl_certfile": tls.certificate,
            "ssl_keyfile": tls.private_key,
            "ssl_ca_certs": None if tls.client_ca is None else str(tls.client_ca),
            "ssl_cert_reqs": ssl.CERT_NONE if tls.client_ca is None else ssl.CERT_REQUIRED,
        }


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves the process's signals alone and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
