"""A real gRPC server on loopback that fails as scripted, and both clients behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
import pytest

from support.scripted_server import Caller, ScriptedServer, call_async, call_sync, start_scripted


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    """A server in plaintext."""
    scripted = ScriptedServer()
    server = start_scripted(scripted, None)
    yield scripted
    scripted.caller_left.set()
    server.stop(0).wait()


@pytest.fixture
def serve_tls() -> Iterator[Callable[[grpc.ServerCredentials], ScriptedServer]]:
    """Servers with TLS, one for each of the given credentials."""
    servers: list[grpc.Server] = []

    def serve(credentials: grpc.ServerCredentials) -> ScriptedServer:
        scripted = ScriptedServer()
        servers.append(start_scripted(scripted, credentials))
        return scripted

    yield serve
    for server in servers:
        server.stop(0).wait()


@pytest.fixture(params=[call_sync, call_async], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Caller:
    """Open either client, use it and close it."""
    caller: Caller = request.param
    return caller
