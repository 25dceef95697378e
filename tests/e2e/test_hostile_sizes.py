"""Requests with many bytes of tiny parts, at both endpoints: refused before they become objects."""

import http.client
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_cli.spawn import SpawnedServer, spawned_server

METHOD = "/farrank.v1.RerankService/Rerank"

# The bytes of a refused request are held twice: by the endpoint and as they are passed on. A parser's objects
# would take 50 times as much.
MAX_OF_ITS_BYTES = 4
ROOM_BYTES = 32 * 2**20

Answer = tuple[object, str]


@pytest.fixture(scope="module")
def server(tiny_rankers: dict[str, Path]) -> Iterator[SpawnedServer]:
    arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", "--http-port=0", "--log-level=warning"]
    with spawned_server(arguments) as spawned:
        yield spawned


def ask_grpc(server: SpawnedServer, data: bytes) -> Answer:
    with grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        call: Callable[..., bytes] = channel.unary_unary(METHOD)
        try:
            return "OK", call(data, timeout=120).decode("latin-1")
        except grpc.RpcError as error:
            return error.code().name, error.details() or ""


def ask_http(server: SpawnedServer, path: str, kind: str, body: bytes) -> Answer:
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=120)
    try:
        connection.request("POST", path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, answer.read().decode("latin-1")
    finally:
        connection.close()


def ask(server: SpawnedServer, endpoint: str, size: int) -> Answer:
    """Send a query and as many empty documents, or values, as there is room for."""
    empty = b"\x0a\x03sea" + b"\x12\x00" * (size // 2)
    if endpoint == "grpc":
        return ask_grpc(server, empty)
    if endpoint == "connect":
        return ask_http(server, METHOD, "application/proto", empty)
    values = b'{"query": "sea", "documents": [%s""]}' % (b'"",' * (size // 3 - 20))
    if endpoint == "connect-json":
        return ask_http(server, METHOD, "application/json", values.replace(b'""', b"{}"))
    return ask_http(server, "/rerank", "application/json", values)


def memory(server: SpawnedServer, name: str) -> int:
    """Return VmRSS of a process, or VmHWM, its peak since the last `forget_most`, in bytes."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def forget_most(server: SpawnedServer) -> None:
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of another process's memory off /proc")
@pytest.mark.parametrize("megabytes", [8, 23])
@pytest.mark.parametrize("endpoint", ["grpc", "connect", "connect-json", "rerank"])
def test_too_many_of_anything_are_refused_for_the_memory_of_their_bytes(
    server: SpawnedServer, endpoint: str, megabytes: int
) -> None:
    size = megabytes * 2**20
    before = memory(server, "VmRSS")
    forget_most(server)
    code, told = ask(server, endpoint, size)
    assert memory(server, "VmHWM") - before < MAX_OF_ITS_BYTES * size + ROOM_BYTES
    assert code in ("INVALID_ARGUMENT", 400)
    assert "documents: has more than 1000 entries; max_documents is 1000" in told or (
        "request: has more than 32032 values; the limit is 32 for each of max_documents 1000" in told
    )


def test_a_large_request_ranks_the_same_at_all_endpoints(server: SpawnedServer) -> None:
    texts = [f"the sea {n} and the 河 " * 15_000 for n in range(20)]
    request = pb.RerankRequest(query="sea 7", documents=[pb.Document(text=text) for text in texts])
    rankings = []
    for code, told in (
        ask_grpc(server, request.SerializeToString()),
        ask_http(server, METHOD, "application/proto", request.SerializeToString()),
    ):
        assert code in ("OK", 200)
        answer = pb.RerankResponse.FromString(told.encode("latin-1"))
        rankings.append([(each.index, each.score) for each in answer.results])
    for escaped in (False, True):
        body = {"query": "sea 7", "documents": [{"text": text} for text in texts]}
        written = json.dumps(body, ensure_ascii=escaped).encode()
        code, told = ask_http(server, METHOD, "application/json", written)
        assert code == 200
        rankings.append([(each["index"], each["score"]) for each in json.loads(told)["results"]])
    first = dict(rankings[0])
    assert len(first) == 20
    for ranking in rankings[1:]:
        assert ranking[0][0] == rankings[0][0][0]
        assert all(math.isclose(score, first[index], rel_tol=1e-3) for index, score in ranking)
