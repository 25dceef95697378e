"""Answers over a real socket, compressed where their caller takes gzip, and the same after decompression."""

import asyncio
import gzip
import json
import random
import threading
from typing import Any

import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_server.http import large_answers
from farrank_server.http.calls import INLINE_BYTES
from farrank_server.http.judgements import JudgedSets
from farrank_server.http.large_answers import PACKED_ABOVE_BYTES
from support.http_endpoint import METHODS, Opened, OpenEndpoint
from support.waiting import until

QUERY, TEXTS = "river", ["the river rises " * 4000, "flour and salt " * 1500]
COHERE = {"query": QUERY, "documents": TEXTS, "return_documents": True}
CONTRACT = {"query": QUERY, "documents": [{"text": text} for text in TEXTS], "options": {"returnTexts": True}}
REQUESTS = {
    "/v2/rerank": COHERE,
    "/v1/rerank": COHERE,
    "/rerank": {"query": QUERY, "texts": TEXTS, "return_text": True},
    "/voyage/v1/rerank": COHERE,
    f"{METHODS}Rerank": CONTRACT,
}
# Differs from call to call.
OWN = ("id", "created", "timings", "usage")


async def sent(
    endpoint: Opened, path: str, body: Any, accepted: str | None, kind: str = "application/json"
) -> tuple[bytes, Any]:
    """Send a request with this `Accept-Encoding` (None: without). Returns the bytes sent, and the headers."""
    headers = {"Content-Type": kind} | ({} if accepted is None else {"Accept-Encoding": accepted})
    async with endpoint.session.request(
        "GET" if body is None else "POST",
        path,
        data=body if body is None or isinstance(body, bytes) else json.dumps(body).encode(),
        headers=headers,
        skip_auto_headers=("Accept-Encoding",),
        auto_decompress=False,
    ) as answer:
        content = await answer.read()
        assert answer.status == 200
        assert int(answer.headers["Content-Length"]) == len(content)
        return content, answer.headers


def lasting(content: bytes) -> Any:
    tree = json.loads(content)
    return {name: its for name, its in tree.items() if name not in OWN} if isinstance(tree, dict) else tree


@pytest.mark.parametrize("path", REQUESTS)
async def test_a_large_answer_is_compressed_in_each_dialect(endpoint: Opened, path: str) -> None:
    plain, headers = await sent(endpoint, path, REQUESTS[path], None)
    assert len(plain) > PACKED_ABOVE_BYTES
    assert "Content-Encoding" not in headers
    assert headers["Vary"] == "Accept-Encoding"
    for accepted in ("gzip, deflate", "gzip;q=0", "identity", "*"):
        content, headers = await sent(endpoint, path, REQUESTS[path], accepted)
        assert headers["Vary"] == "Accept-Encoding"
        if accepted in ("gzip, deflate", "*"):
            assert headers["Content-Encoding"] == "gzip"
            assert len(content) < len(plain) / 10
            content = gzip.decompress(content)
        else:
            assert "Content-Encoding" not in headers
        assert lasting(content) == lasting(plain)
    assert json.dumps(TEXTS[0])[1:-1].encode() in content


async def test_messages_are_compressed_too(endpoint: Opened) -> None:
    documents = [pb.Document(text=text) for text in TEXTS]
    options = pb.RerankOptions(return_texts=True)
    request = pb.RerankRequest(query=QUERY, documents=documents, options=options).SerializeToString()
    answers = []
    for accepted in ("gzip", None):
        content, headers = await sent(endpoint, f"{METHODS}Rerank", request, accepted, "application/proto")
        assert headers["Content-Type"] == "application/proto"
        assert headers.get("Content-Encoding") == accepted
        answers.append(pb.RerankResponse.FromString(gzip.decompress(content) if accepted else content))
    assert list(answers[0].results) == list(answers[1].results)
    assert {each.text for each in answers[0].results} == set(TEXTS)


async def test_a_small_answer_stays_as_it_is(endpoint: Opened) -> None:
    for path, body in ((f"{METHODS}ListRankers", {}), ("/v2/rerank", {**COHERE, "return_documents": False})):
        content, headers = await sent(endpoint, path, body, "gzip")
        assert len(content) <= PACKED_ABOVE_BYTES
        assert "Content-Encoding" not in headers
        assert "Vary" not in headers


async def test_large_answers_are_compressed_beside_the_event_loop(
    endpoint: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def packed(body: bytes) -> bytes:
        threads.append(threading.current_thread())
        return gzip.compress(body)

    monkeypatch.setattr(large_answers, "packed", packed)
    for path, body in REQUESTS.items():
        assert len(json.dumps(body)) > INLINE_BYTES
        await sent(endpoint, path, body, "gzip")
        assert threads.pop() is not threading.main_thread()


async def test_unread_bytes_are_those_that_are_sent(endpoint: Opened) -> None:
    text = random.Random(5).randbytes(4_000_000).hex()
    request = {**CONTRACT, "documents": [{"text": text}]}
    request["options"] = {"returnTexts": True, "maxChunks": 1}
    body = json.dumps(request).encode()
    held = {}
    for accepted in ("gzip", "identity"):
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.listener.port, limit=1024)
        head = f"POST {METHODS}Rerank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        head += f"Accept-Encoding: {accepted}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        held[accepted] = endpoint.bench.count("farrank_unread_answer_bytes")
        writer.close()
        await until(lambda: endpoint.bench.count("farrank_unread_answer_bytes") == 0)
    # A hexadecimal digit has four bits.
    assert len(text) * 0.5 < held["gzip"] < len(text) * 0.7
    assert held["identity"] > len(text)


async def test_judgements_are_compressed(open_endpoint: OpenEndpoint) -> None:
    questions = [{"id": f"q{n}", "text": f"question {n}", "grades": {"a": 1}} for n in range(9000)]
    judged: JudgedSets = {"things": json.dumps({"index": "things", "questions": questions}).encode()}
    async with open_endpoint(judged=judged) as endpoint:
        plain, headers = await sent(endpoint, "/judgements.json", None, "gzip;q=0")
        assert headers["Vary"] == "Accept-Encoding"
        content, headers = await sent(endpoint, "/judgements.json", None, "gzip")
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(content) == plain
        assert json.loads(plain)["sets"][0]["questions"] == questions
        assert len(content) < len(plain) / 4
