"""What a large request costs everybody else: the longest of the health checks beside it, and memory.

python -m farrank_bench.large_requests

A process of its own checks the server's health every 10 ms while requests come, each as large as the limit
permits, and larger. The server's model is the embedded one with a head of random weights; each document is
cut to the tokens of one chunk, so that reading a request weighs more than scoring it.
"""

import http.client
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from farrank.v1.rerank_pb2 import Document, RerankRequest
from farrank_bench.report import Command, Heading, Measure, Row, below, spread
from farrank_bench.rounds import Child, child
from farrank_bench.served import RANKER
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_rankers.files.model_files import EMBEDDED
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_server.config.schema import LimitsConfig

METHOD = "/farrank.v1.RerankService/Rerank"
EVERY_S = 0.01
STALL_MS = 50.0
DOCUMENT_BYTES = 2**20
QUERY = "what floats on the sea"
TIMEOUT_S = 120.0


def checked(connection: Connection, address: str) -> None:
    """Check health every 10 ms between two questions; answer with the longest check in ms."""
    with grpc.insecure_channel(address) as channel:
        check, request = HealthStub(channel).Check, HealthCheckRequest()
        check(request, timeout=TIMEOUT_S)
        while True:
            connection.recv()
            connection.send(None)
            longest_s = 0.0
            while not connection.poll(EVERY_S):
                begun_s = time.perf_counter()
                check(request, timeout=TIMEOUT_S)
                longest_s = max(longest_s, time.perf_counter() - begun_s)
            connection.recv()
            connection.send(longest_s * 1e3)


def ask_grpc(server: SpawnedServer, data: bytes) -> str:
    """Send bytes, give the status."""
    with grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        call: Callable[..., bytes] = channel.unary_unary(METHOD)
        try:
            call(data, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"


def ask_http(server: SpawnedServer, path: str, data: bytes) -> str:
    """Send JSON, give the status."""
    connection = http.client.HTTPConnection(server.http_url.removeprefix("http://"), timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    finally:
        connection.close()


def long_texts(size: int) -> list[str]:
    """Write documents of 1 MB each, together of almost `size` bytes."""
    text = "the sea carries what is lighter than the water that it takes the place of " * 2**14
    return [text[: DOCUMENT_BYTES - 256]] * (size // DOCUMENT_BYTES)


def as_protobuf(size: int) -> bytes:
    """Write them as a request of gRPC's."""
    documents = [Document(text=text) for text in long_texts(size)]
    return RerankRequest(query=QUERY, documents=documents).SerializeToString()


def as_json(size: int) -> bytes:
    """Write them as a request of Connect's JSON."""
    return json.dumps({"query": QUERY, "documents": [{"text": text} for text in long_texts(size)]}).encode()


def empty_documents(size: int) -> bytes:
    """Write as many empty documents as there is room for; a server refuses so many."""
    query = RerankRequest(query=QUERY).SerializeToString()
    return query + b"\x12\x00" * ((size - len(query)) // 2)


def empty_values(size: int) -> bytes:
    """Write as many empty documents as there is room for in JSON."""
    return b'{"query": "sea", "documents": [%s{}]}' % (b"{}," * (size // 3 - 20))


class Memory:
    """What the kernel says of a process's memory."""

    def __init__(self, pid: int) -> None:
        self._files = Path(f"/proc/{pid}")

    def begin(self) -> None:
        """Forget the most that was held so far."""
        (self._files / "clear_refs").write_text("5")
        self._before = self._bytes("VmRSS")

    def grown(self) -> int:
        """Give the most that was held since `begin`, beside what was held then, in bytes."""
        return self._bytes("VmHWM") - self._before

    def _bytes(self, name: str) -> int:
        lines = (self._files / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def beside(checks: Child, memory: Memory, ask: Callable[[bytes], str], data: bytes, rounds: int) -> list[Row]:
    """Send a request in each round; say what the longest of the checks beside it took, and what was held."""
    longest, grown, took, told = [], [], [], set()
    for _ in range(rounds):
        memory.begin()
        checks.ask()
        begun_s = time.perf_counter()
        told.add(ask(data))
        took.append(time.perf_counter() - begun_s)
        longest.append(checks.ask())
        grown.append(memory.grown() / len(data))
    return [
        below(f"longest health check, ms ({', '.join(sorted(told))})", longest, STALL_MS, ".1f"),
        Row("memory at most, over the request's bytes", spread(grown, ".2f")),
        Row("until the answer, s", spread(took, ".2f")),
    ]


def parts(rounds: int, scratch: Path) -> Iterator[tuple[str, Measure]]:
    """Start the server, and send it one kind of request after the other."""
    artifact = scratch / "ranker"
    save_ranker(new_ranker("maxp", EMBEDDED, seed=1, max_document_tokens=128), artifact)
    arguments = [f"--ranker={RANKER}={artifact}", "--http-port=0", "--log-level=warning", "--device=cpu"]
    limit = LimitsConfig().max_request_bytes
    with spawned_server(arguments) as server, child("checks", checked, server.address) as checks:
        grpc_door, connect = partial(ask_grpc, server), partial(ask_http, server, METHOD)
        own = partial(ask_http, server, "/rerank")
        memory = Memory(server.process.pid)
        kinds: list[tuple[str, Callable[[bytes], str], Callable[[int], bytes], float]] = [
            ("gRPC, documents of 1 MB", grpc_door, as_protobuf, 1),
            ("HTTP, documents of 1 MB", connect, as_json, 1),
            ("gRPC, empty documents", grpc_door, empty_documents, 1),
            ("HTTP, empty documents", own, empty_values, 1),
            ("gRPC, beyond the limit", grpc_door, empty_documents, 1.02),
            ("gRPC, twice the limit", grpc_door, empty_documents, 2),
            ("HTTP, twice the limit", own, empty_values, 2),
        ]
        for title, ask, make, times in kinds:
            data = make(int(limit * times))
            yield f"{title}, {len(data) / 2**20:.1f} MiB", partial(beside, checks, memory, ask, data, rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each kind of request."""
    command = Command("farrank_bench.large_requests", __doc__)
    command.options.add_argument("--rounds", type=int, default=5, help="requests of each kind (%(default)s)")
    given = command.parse(arguments)
    if sys.platform != "linux":
        command.options.error("reads memory off /proc, which Linux alone has")
    notes = f"a health check every {EVERY_S * 1e3:.0f} ms; medians of rounds (smallest to largest)"
    with tempfile.TemporaryDirectory() as scratch:
        return command.report(Heading("Large requests", notes), parts(given.rounds, Path(scratch)), given.out)


if __name__ == "__main__":
    sys.exit(main())
