"""The HTTP client for search engines, at servers that answer as each test says."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import trustme
from aiohttp import web

from farrank_first_stage.engine_client import (
    Access,
    EngineClient,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
)

TIMEOUT_S = 20.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def fine(request: web.Request) -> web.StreamResponse:
    return web.json_response({"count": 1})


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def say(status: int, **more: object) -> Handler:
    async def said(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, **more)  # type: ignore[arg-type]

    return said


@dataclass
class Server:
    """Answers by its handler, and keeps its requests."""

    url: str
    handler: Handler = fine
    requests: list[web.Request] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[object] = field(default_factory=set)


@asynccontextmanager
async def listening() -> AsyncIterator[Server]:
    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()  # the tests read it again, after the answer
        server.requests.append(request)
        server.connections.add(request.transport)
        server.arrived.set()
        return await server.handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = Server(f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client_of(
    *urls: str,
    connections: int = 8,
    host_timeout_s: float = TIMEOUT_S,
    tls: ssl.SSLContext | None = None,
    product: str | None = None,
) -> AsyncIterator[EngineClient]:
    client = EngineClient(
        Access(urls, {"authorization": "Basic x"}, tls, connections, host_timeout_s, product)
    )
    try:
        yield client
    finally:
        await client.close()


async def count(client: EngineClient) -> object:
    return await client.request("GET", "/web/_count", {})


async def outcomes(client: EngineClient, requests: int = 6) -> list[str]:
    """Send requests one after the other; name the error of each, or ok."""
    seen = []
    for _ in range(requests):
        try:
            await count(client)
            seen.append("ok")
        except (EngineRefused, EngineTimeout, EngineUnreachable) as error:
            seen.append(type(error).__name__)
    return seen


async def test_a_request_has_the_hosts_path_the_credentials_and_json() -> None:
    async with listening() as server, client_of(f"{server.url}/engine/") as client:
        # The name of an index may be a date calculation: every character of it is quoted.
        path = "/%3Cweb-%7Bnow%2Fd%7D%3E,other*/_search"
        assert await client.request("POST", path, {"a": "b c"}, {"query": "Füße"}) == {"count": 1}
        await client.request("GET", "/web/_count", {})

        first, second = server.requests
        assert first.raw_path.partition("?")[0] == f"/engine{path}"
        assert dict(first.query) == {"a": "b c"}
        assert await first.json() == {"query": "Füße"}
        assert first.content_type == "application/json"
        assert not second.can_read_body
        for request in server.requests:
            assert request.headers["Authorization"] == "Basic x"
            assert request.headers["Accept"] == "application/json"
            assert "Accept-Encoding" not in request.headers


async def test_a_silent_host_of_two_costs_one_request() -> None:
    async with (
        listening() as one,
        listening() as other,
        client_of(one.url, other.url, host_timeout_s=1) as client,
    ):
        other.handler = hang

        assert sorted(await outcomes(client)) == ["EngineTimeout", *["ok"] * 5]
        assert len(other.requests) == 1


async def test_an_answer_that_comes_byte_by_byte_is_not_waited_for_longer() -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    async with listening() as server, client_of(server.url, host_timeout_s=0.5) as client:
        server.handler = trickle
        with pytest.raises(EngineTimeout):
            await asyncio.wait_for(count(client), TIMEOUT_S)


SEARCH_TOO_LATE = (
    b'{"error": {"root_cause": [{"type": "search_timeout_exception", "reason": "Time exceeded"}]}}'
)


@pytest.mark.parametrize(
    ("status", "body", "at_the_other"),
    [
        (502, b"", 1),
        (503, b"", 1),
        (504, b"", 1),
        (504, SEARCH_TOO_LATE, 3),  # of Elasticsearch 8
        (500, b"", 3),
        (429, b"", 3),
        (404, b"", 3),
    ],
)
async def test_only_an_answer_of_a_host_that_is_down_makes_it_avoided(
    status: int, body: bytes, at_the_other: int
) -> None:
    async with listening() as one, listening() as other, client_of(one.url, other.url) as client:
        other.handler = say(status, body=body)

        assert (await outcomes(client)).count("EngineRefused") == at_the_other
        assert len(other.requests) == at_the_other


@pytest.mark.parametrize("back", [fine, say(404)])
async def test_hosts_that_are_all_down_are_still_tried(back: Handler) -> None:
    async with listening() as one, listening() as other, client_of(one.url, other.url) as client:
        one.handler = other.handler = say(503)
        assert set(await outcomes(client)) == {"EngineRefused"}
        assert len(one.requests) == len(other.requests) == 3

        one.handler = back
        await outcomes(client)
        assert len(one.requests) >= 3 + 5  # the other host has one more if its turn comes first


async def test_a_caller_that_leaves_says_nothing_about_the_host() -> None:
    async with listening() as one, listening() as other, client_of(one.url, other.url) as client:
        one.handler = hang
        leaving = [asyncio.create_task(count(client)) for _ in range(2)]
        await asyncio.wait_for(one.arrived.wait(), TIMEOUT_S)
        for each in leaving:
            each.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        one.handler = fine

        assert await outcomes(client) == ["ok"] * 6
        assert len(one.requests) == 4


async def test_each_host_has_its_own_limit_of_connections() -> None:
    async with listening() as one, listening() as other:
        async with client_of(one.url, other.url, connections=2) as client:
            await asyncio.gather(*(count(client) for _ in range(40)))

        assert (len(one.connections), len(other.connections)) == (2, 2)
        assert len(one.requests) == len(other.requests) == 20


async def test_the_limit_of_connections_is_the_only_one() -> None:
    together = asyncio.Barrier(200)

    async def meet(request: web.Request) -> web.StreamResponse:
        await together.wait()
        return await fine(request)

    async with listening() as server, client_of(server.url, connections=200) as client:
        server.handler = meet
        await asyncio.wait_for(asyncio.gather(*(count(client) for _ in range(200))), TIMEOUT_S)


async def test_a_redirect_is_no_answer() -> None:
    async with listening() as server, client_of(server.url) as client:
        server.handler = say(302, headers={"Location": "/other"})

        with pytest.raises(EngineRefused, match="302"):
            await client.request("POST", "/web/_search", {}, {"query": {"match": {"body": "river"}}})
        assert len(server.requests) == 1


async def test_an_error_is_read_from_any_body() -> None:
    async with listening() as server, client_of(server.url) as client:
        for body, error in (
            (b'{"error": {"type": "x", "reason": "y"}, "status": 400}', {"type": "x", "reason": "y"}),
            (b'{"error": "no handler"}', "no handler"),
            (b"[1]", [1]),
            (b'{"error": {"type"', '{"error": {"type"'),
            (b"caf\xe9", "caf\N{REPLACEMENT CHARACTER}"),
            (b"", ""),
        ):
            server.handler = say(400, body=body)
            with pytest.raises(EngineRefused) as refused:
                await count(client)
            assert (refused.value.status, refused.value.error) == (400, error)


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"count": 1', b"\xff", b"[" * 100_000])
async def test_an_answer_must_be_json(body: bytes) -> None:
    async with listening() as server, client_of(server.url) as client:
        server.handler = say(200, body=body)

        with pytest.raises(EngineUnreachable, match="is not JSON") as wrong:
            await count(client)
        assert not wrong.value.lasting


async def test_another_product_is_refused_for_good() -> None:
    async with listening() as server, client_of(server.url, product="Elasticsearch") as client:
        with pytest.raises(EngineUnreachable, match="not Elasticsearch") as wrong:
            await count(client)
        assert wrong.value.lasting

        server.handler = say(200, body=b"{}", headers={"X-Elastic-Product": "Elasticsearch"})
        assert await count(client) == {}


async def test_no_connection_may_be_one_later_but_a_wrong_protocol_stays() -> None:
    async with client_of("http://127.0.0.1:1") as client:
        with pytest.raises(EngineUnreachable, match=r"127\.0\.0\.1:1") as closed:
            await count(client)
        assert not closed.value.lasting
    async with listening() as server:
        secure = server.url.replace("http", "https")
        async with client_of(secure, tls=ssl.create_default_context()) as client:
            with pytest.raises(EngineUnreachable) as plain:
                await count(client)
            assert plain.value.lasting


@pytest.mark.skipif(sys.version_info >= (3, 12, 8), reason="aiohttp leaves this to later versions of Python")
async def test_a_request_that_ends_leaves_no_connection_to_a_host_that_hangs() -> None:
    authority, serving = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    def received() -> socket.socket:
        """Wait for a request. The returned socket is without TLS: it does not confirm the end of TLS."""
        with serving.wrap_socket(listener.accept()[0], server_side=True) as secure:
            assert secure.recv(1)
            return socket.socket(fileno=secure.detach())

    def read_to_the_end(connection: socket.socket) -> None:
        connection.settimeout(TIMEOUT_S)
        with suppress(ConnectionResetError):
            while connection.recv(2**16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with client_of(f"https://127.0.0.1:{listener.getsockname()[1]}", tls=trusting) as client:
            waiting = asyncio.create_task(count(client))
            with await asyncio.wait_for(asyncio.to_thread(received), TIMEOUT_S) as connection:
                waiting.cancel()
                await asyncio.to_thread(read_to_the_end, connection)


async def test_closing_ends_requests_and_connections() -> None:
    async with listening() as server:
        async with client_of(server.url) as client:
            server.handler = hang
            waiting = asyncio.create_task(count(client))
            await asyncio.wait_for(server.arrived.wait(), TIMEOUT_S)

        with pytest.raises(EngineUnreachable):
            await asyncio.wait_for(waiting, TIMEOUT_S)
