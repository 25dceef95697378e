"""An HTTP caller that does not read its answer is counted, and its connection is ended when it is late."""

import asyncio
import json
import socket
from io import BytesIO
from typing import Any

import pytest

from farrank_server.config.schema import LimitsConfig
from farrank_server.service import unread
from support.http_endpoint import METHODS, Opened, OpenEndpoint
from support.waiting import until

TEXT = "the sea and the river " * 400_000
BODY = json.dumps(
    {"query": "sea", "documents": [{"text": TEXT}], "options": {"returnTexts": True, "maxChunks": 1}}
).encode()


async def asked(endpoint: Opened) -> socket.socket:
    """Send a call, with room for only a part of the answer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", endpoint.listener.port))
    head = f"POST {METHODS}Rerank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(BODY)}\r\n\r\n"
    await loop.sock_sendall(connection, head.encode() + BODY)
    return connection


async def read(endpoint: Opened) -> tuple[int, Any]:
    """Send a call, and read the answer, which would be small if it were compressed."""
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    async with endpoint.session.post(METHODS + "Rerank", data=BytesIO(BODY), headers=headers) as answer:
        return answer.status, await answer.json()


def unread_bytes(endpoint: Opened) -> float:
    return endpoint.bench.count("farrank_unread_answer_bytes")


async def test_an_unread_answer_counts_until_its_connection_is_ended(
    endpoint: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "SWEEP_S", 0.05)
    connection = await asked(endpoint)
    await until(lambda: unread_bytes(endpoint) > len(TEXT))
    # Another caller gets its whole answer in the meantime.
    status, answer = await read(endpoint)
    assert (status, answer["results"][0]["text"]) == (200, TEXT)
    monkeypatch.setattr(unread, "UNREAD_S", 0.1)
    monkeypatch.setattr(unread, "SLOWEST_BYTES_PER_S", 1e9)
    second = await asked(endpoint)
    await until(lambda: endpoint.count("unread_connections_ended_total") == 1)
    # The first may take more than a minute, as documented.
    await until(lambda: 0 < unread_bytes(endpoint) < 2 * len(TEXT))
    for each in (connection, second):
        each.close()
    await until(lambda: unread_bytes(endpoint) == 0)


async def test_too_much_unread_is_refused_in_the_callers_dialect(open_endpoint: OpenEndpoint) -> None:
    async with open_endpoint(limits=LimitsConfig(max_unread_bytes=len(TEXT))) as endpoint:
        connection = await asked(endpoint)
        await until(lambda: unread_bytes(endpoint) > len(TEXT))
        status, told = await read(endpoint)
        assert (status, told["code"]) == (429, "resource_exhausted")
        assert "bytes of answers are unread: no room for" in told["message"]
        assert endpoint.count("rejections_total", ranker="maxp", reason="answers_unread") == 1
        connection.close()
        await until(lambda: unread_bytes(endpoint) == 0)
