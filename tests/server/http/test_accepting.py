"""Connections that never finish their headers or handshakes, and more connections than there is room for."""

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from farrank_server.config.schema import TlsConfig
from farrank_server.http import accepting, connection
from support.http_connection import ClosedError, Connections, request
from support.http_endpoint import METHODS, Opened, OpenEndpoint
from support.tls_files import TlsFiles
from support.waiting import until

RERANK = f"{METHODS}Rerank"
BODY = b'{"query": "sea", "documents": [{"text": "the river"}]}'
HALF_HEADERS = b"POST /rerank HTTP/1.1\r\nHost: a\r\n"
GREEDY, MODEST = "127.0.0.2", "127.0.0.3"


def ended(endpoint: Opened, why: str) -> float:
    return endpoint.bench.count("farrank_http_connections_ended_total", why=why)


async def test_headers_have_their_time_however_they_come(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEADERS_S", 0.3)
    async with open_endpoint() as endpoint:
        # Clients keep spare connections, which have sent nothing.
        spare, half, dripping, kept = [await connect(endpoint.listener.port) for _ in range(4)]
        await half.send(HALF_HEADERS)
        assert (await kept.ask(RERANK, BODY)).status == 200
        await kept.send(HALF_HEADERS)
        await dripping.send(HALF_HEADERS)
        with pytest.raises(ClosedError):  # noqa: PT012  # after some of them
            while True:
                await dripping.send(b"X: a\r\n")
                await asyncio.sleep(0.02)
        for each in (half, kept):
            assert await each.ended() == b""
        assert ended(endpoint, "headers") == 3
        assert (await spare.ask(RERANK, BODY)).status == 200
        await spare.close()
        await until(lambda: endpoint.bench.count("farrank_http_connections") == 0)


async def test_a_kept_connection_ends_when_nothing_comes(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE_S", 0.1)
    async with open_endpoint() as endpoint:
        kept = await connect(endpoint.listener.port)
        assert (await kept.ask(RERANK, BODY)).status == 200
        assert await kept.ended() == b""
        # The late end of a refused body does not keep it open, either.
        refused = await connect(endpoint.listener.port)
        whole = request(RERANK, b"[" * 1000, "Content-Encoding: br\r\n")
        await refused.send(whole[:-10])
        assert (await refused.answer()).status == 501
        await refused.send(whole[-10:])
        assert await refused.ended() == b""


async def test_a_caller_that_reads_no_answer_is_ended(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD_S", 0.2)
    async with open_endpoint() as endpoint:
        unread = await connect(endpoint.listener.port)
        unread.writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(ClosedError):  # noqa: PT012  # once the buffers of both sides are full
            while True:
                await unread.send(request("/openapi.json") * 100)
        await until(lambda: endpoint.bench.count("farrank_http_connections") == 0)


async def test_new_connections_take_the_place_of_those_that_wait_longest(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "MAX_CONNECTIONS", 32)
    async with open_endpoint() as endpoint:
        port = endpoint.listener.port
        greedy = [await connect(port, GREEDY) for _ in range(60)]
        for each in greedy:
            await each.send(HALF_HEADERS)
        # One caller may have 30 of 32.
        await until(lambda: ended(endpoint, "room") == 30)
        assert [await each.ended() for each in greedy[:30]] == [b""] * 30
        modest = await connect(port, MODEST)
        assert (await modest.ask(RERANK, BODY)).status == 200
        # Its own newest connection goes on, too.
        await greedy[-1].send(b"Content-Length: 0\r\n\r\n")
        assert (await greedy[-1].answer()).status == 400


async def test_a_connection_beyond_those_in_calls_is_refused(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "MAX_CONNECTIONS", 2)
    async with open_endpoint() as endpoint:
        calling = [await connect(endpoint.listener.port) for _ in range(2)]
        whole = request(RERANK, BODY)
        for each in calling:
            await each.send(whole[:-10])
        await until(lambda: endpoint.bench.count("farrank_open_calls", kind="HTTP requests") == 2)
        third = await connect(endpoint.listener.port)
        assert await third.ended() == b""
        assert ended(endpoint, "refused") == 1
        for each in calling:
            await each.send(whole[-10:])
            assert (await each.answer()).status == 200


async def test_connections_that_come_in_one_turn_of_the_loop_give_their_places_back(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room, a connection may be ended before its task has begun."""
    monkeypatch.setattr(accepting, "MAX_CONNECTIONS", 32)
    async with open_endpoint() as endpoint:
        calling = [await connect(endpoint.listener.port) for _ in range(29)]
        for each in calling:
            await each.send(request(RERANK, BODY)[:-10])
        await until(lambda: endpoint.bench.count("farrank_open_calls", kind="HTTP requests") == 29)
        burst = [socket.create_connection(("127.0.0.1", endpoint.listener.port)) for _ in range(20)]
        await until(lambda: ended(endpoint, "room") + ended(endpoint, "refused") >= 19)
        for sent in burst:
            sent.close()
        for each in calling:
            await each.close()
        await until(lambda: endpoint.bench.count("farrank_http_connections") == 0)


async def test_an_error_of_accepting_that_stays_holds_nothing_up(
    open_endpoint: OpenEndpoint, connect: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, failures = asyncio.get_running_loop(), 0
    accept = loop.sock_accept

    async def failing(listening: socket.socket) -> object:
        nonlocal failures
        if failures >= 10_000:
            return await accept(listening)
        failures += 1
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(loop, "sock_accept", failing)
    async with open_endpoint() as endpoint:
        seen = set()
        while failures < 10_000:
            seen.add(failures)
            await asyncio.sleep(0)
        assert len(seen) > 100
        caller = await connect(endpoint.listener.port)
        assert (await caller.ask(RERANK, BODY)).status == 200


@contextmanager
def no_more_files() -> Iterator[None]:
    """Make this process unable to open further files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_files_connections_wait_and_the_log_says_so_once(
    open_endpoint: OpenEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    async with open_endpoint() as endpoint:
        with socket.socket() as caller:
            caller.setblocking(False)
            with no_more_files():
                await loop.sock_connect(caller, ("127.0.0.1", endpoint.listener.port))
                await until(lambda: ended(endpoint, "files") >= 3)
            await loop.sock_sendall(caller, request("/health"))
            assert (await loop.sock_recv(caller, 100)).startswith(b"HTTP/1.1 200")
        (said,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert said.getMessage().startswith("cannot accept HTTP connections: Too many open files; 0 are")


async def test_a_handshake_has_its_time(
    open_endpoint: OpenEndpoint, connect: Connections, tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "HANDSHAKE_S", 0.2)
    tls = TlsConfig(tls_files.certificate, tls_files.private_key)
    async with open_endpoint(tls=tls) as endpoint:
        silent = await connect(endpoint.listener.port)
        wrong = await connect(endpoint.listener.port)
        await wrong.send(b"GET /health HTTP/1.1\r\n\r\n")
        assert await silent.ended() == b""
        await wrong.ended()
        await until(lambda: ended(endpoint, "handshake") == 2)
        # On a busy machine a valid handshake takes longer than that.
        monkeypatch.undo()
        trusting = ssl.create_default_context(cafile=tls_files.authority)
        async with endpoint.session.get("/health", ssl=trusting, server_hostname="farrank.test") as answer:
            assert answer.status == 200


async def test_half_handshakes_give_way_to_new_connections(
    open_endpoint: OpenEndpoint, connect: Connections, tls_files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "MAX_CONNECTIONS", 4)
    tls = TlsConfig(tls_files.certificate, tls_files.private_key)
    async with open_endpoint(tls=tls) as endpoint:
        half = [await connect(endpoint.listener.port, GREEDY) for _ in range(8)]
        await until(lambda: ended(endpoint, "room") == 4)
        assert [await each.ended() for each in half[:4]] == [b""] * 4
        trusting = ssl.create_default_context(cafile=tls_files.authority)
        async with endpoint.session.get("/health", ssl=trusting, server_hostname="farrank.test") as answer:
            assert answer.status == 200
