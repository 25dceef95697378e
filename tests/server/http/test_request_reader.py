"""Requests that another reader could parse differently, or that have too many headers."""

import asyncio
import json
import logging
import socket
import ssl

import pytest

from farrank_server.config.schema import TlsConfig
from farrank_server.http.request_reader import MAX_HEADER_BYTES, MAX_HEADERS
from support.http_connection import Connections, HttpConnection
from support.http_endpoint import METHODS, OpenEndpoint
from support.tls_files import TlsFiles
from support.waiting import until

RERANK = f"{METHODS}Rerank".encode()
LINE = b"POST " + RERANK + b" HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
BODY = b'{"query": "sea", "documents": [{"text": "the river"}]}'
CHUNKS = b"%x\r\n%b\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
BOTH = "has both Content-Length and Transfer-Encoding"
BARE = "a line ends with LF; lines must end with CRLF"
FOLDED = "a header is folded over several lines; write each header in one line"
MANY = f"has more than {MAX_HEADERS} headers"
LONG = f"its headers have more than {MAX_HEADER_BYTES} bytes"

# Each would hide the following request of the connection if a proxy parses it differently.
WRONG = {
    "both lengths": (LINE + LENGTH + CHUNKED + b"\r\n" + CHUNKS + b"0\r\n\r\n", 400, BOTH),
    "both the other way round": (LINE + CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n", 400, BOTH),
    "chunks of HTTP/1.0": (
        LINE.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n0\r\n\r\n",
        400,
        "has a Transfer-Encoding, which HTTP/1.0 does not allow",
    ),
    "bare line feeds": (b"GET /health HTTP/1.1\nHost: a\n\n", 400, BARE),
    "one bare line feed": (LINE + b"X: a\n" + LENGTH + b"\r\n" + BODY, 400, BARE),
    "bare empty line": (LINE + LENGTH + b"\n" + BODY, 400, BARE),
    "folded": (LINE + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY, 400, FOLDED),
    "folded by a tab": (LINE + LENGTH + b"X: a\r\n\tb\r\n\r\n" + BODY, 400, FOLDED),
    "folded at once": (b"GET /health HTTP/1.1\r\n Host: a\r\n\r\n", 400, FOLDED),
    "bare line feed in a trailer": (LINE + CHUNKED + b"\r\n" + CHUNKS + b"0\r\nX: a\n\r\n", 400, BARE),
    "bare line feed for a trailer": (LINE + CHUNKED + b"\r\n" + CHUNKS + b"0\r\n\n", 400, BARE),
    "many headers": (b"GET /health HTTP/1.1\r\n" + b"X: a\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431, MANY),
    "a long header": (b"GET /health HTTP/1.1\r\nX: " + b"a" * MAX_HEADER_BYTES + b"\r\n\r\n", 431, LONG),
    "a header without an end": (b"GET /health HTTP/1.1\r\nX: " + b"a" * MAX_HEADER_BYTES, 431, LONG),
    "a long path": (b"GET /" + b"a" * MAX_HEADER_BYTES, 431, LONG),
    "an unknown coding": (
        LINE + b"Transfer-Encoding: gzip\r\n\r\n",
        501,
        "Only Transfer-Encoding: chunked is supported",
    ),
    "garbage": (b"\x01\x02\r\n\r\n", 400, "illegal request line"),
}


async def refused(caller: HttpConnection) -> tuple[int, str]:
    answer = await caller.answer()
    assert answer.closes
    assert await caller.ended() == b""
    said = json.loads(answer.body)
    assert said["message"] == said["detail"]
    return answer.status, said["message"]


@pytest.mark.parametrize("name", WRONG)
async def test_ambiguous_requests_are_refused_and_end_the_connection(
    name: str, open_endpoint: OpenEndpoint, connect: Connections
) -> None:
    sent, status, why = WRONG[name]
    async with open_endpoint() as endpoint:
        caller = await connect(endpoint.listener.port)
        await caller.send(sent)
        code, message = await refused(caller)
        assert (code, message[: len(why) + 9]) == (status, f"request: {why}")
        assert endpoint.bench.count("farrank_http_connections_ended_total", why="malformed") == 1
        await until(lambda: endpoint.bench.count("farrank_http_connections") == 0)


async def test_pieces_of_a_request_are_read_as_the_whole_is(
    open_endpoint: OpenEndpoint, connect: Connections
) -> None:
    async with open_endpoint() as endpoint:
        right = LINE + b"X: a\r\n" * (MAX_HEADERS - 3) + CHUNKED + b"\r\n" + CHUNKS + b"0\r\nT: a\r\n\r\n"
        caller = await connect(endpoint.listener.port)
        for _ in range(2):
            for at in range(0, len(right), 7):
                await caller.send(right[at : at + 7])
            assert (await caller.answer()).status == 200
        wrong, status, why = WRONG["folded"]
        for at in range(len(wrong) - len(BODY)):
            await caller.send(wrong[at : at + 1])
        assert await refused(caller) == (status, f"request: {why}")


async def test_the_log_says_the_same_no_more_than_ten_times_a_minute(
    open_endpoint: OpenEndpoint, connect: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_endpoint() as endpoint:
        for _ in range(12):
            caller = await connect(endpoint.listener.port)
            await caller.send(WRONG["both lengths"][0])
            assert (await refused(caller))[0] == 400
        assert endpoint.bench.count("farrank_http_connections_ended_total", why="malformed") == 12
    said = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert said == [f"an HTTP request was refused: {BOTH} (0 more in the last minute)"] * 10


async def test_a_refused_body_whose_chunks_are_wrong_just_ends_its_connection(
    open_endpoint: OpenEndpoint, connect: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_endpoint() as endpoint:
        caller = await connect(endpoint.listener.port)
        await caller.send(LINE + b"Content-Encoding: br\r\n" + CHUNKED + b"\r\n")
        assert (await caller.answer()).status == 501
        await caller.send(b"no chunk\r\n")
        await caller.ended()
        await until(lambda: endpoint.bench.count("farrank_http_connections") == 0)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR], caplog.text


@pytest.mark.parametrize(
    "rest", [LENGTH + CHUNKED + b"\r\n", CHUNKED + b"\r\nno chunk\r\n"], ids=["both lengths", "a chunk"]
)
async def test_the_answer_to_a_refused_head_has_no_body(
    open_endpoint: OpenEndpoint, connect: Connections, caplog: pytest.LogCaptureFixture, rest: bytes
) -> None:
    async with open_endpoint() as endpoint:
        caller = await connect(endpoint.listener.port)
        await caller.send(LINE.replace(b"POST", b"HEAD") + rest)
        head, _, body = (await caller.ended()).partition(b"\r\n\r\n")
        assert head.split()[1] in (b"400", b"404", b"405")
        assert body == b""
        await until(lambda: endpoint.bench.count("farrank_http_connections") == 0)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR], caplog.text


async def test_a_wrong_chunk_over_tls_ends_its_call_before_the_peer_agrees_to_the_end(
    open_endpoint: OpenEndpoint, tls_files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_endpoint(tls=TlsConfig(tls_files.certificate, tls_files.private_key)) as endpoint:
        trusting = ssl.create_default_context(cafile=tls_files.authority)
        plain = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", endpoint.listener.port))
        with await asyncio.to_thread(trusting.wrap_socket, plain, server_hostname="farrank.test") as caller:
            await asyncio.to_thread(
                caller.sendall, LINE + b"Connect-Timeout-Ms: 60000\r\n" + CHUNKED + b"\r\n"
            )
            await until(lambda: endpoint.bench.count("farrank_open_calls", kind="HTTP requests") == 1)
            await asyncio.to_thread(caller.sendall, b"no chunk\r\n")
            # The peer reads nothing.
            await until(lambda: endpoint.bench.count("farrank_open_calls", kind="HTTP requests") == 0)
        await until(lambda: endpoint.bench.count("farrank_http_connections") == 0)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR], caplog.text
