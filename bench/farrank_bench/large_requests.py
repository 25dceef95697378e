"""The cost of a large request for other callers: the longest health check meanwhile, and memory.

python -m farrank_bench.large_requests

A second process checks the server's health every 10 ms while requests arrive that are as large as the limit
permits, and larger. The server's model is the embedded one with a head of random weights. Each document is
cut to the tokens of one chunk, so that reading a request takes longer than scoring it.

With --at-once, many requests of a few documents arrive at once. A caller at another address reranks 70 KB
over HTTP, one call after the other, first alone and then during these requests. Each round has its own
server, because a process does not return all its memory to the system.
"""

import http.client
import json
import math
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from farrank.v1.rerank_pb2 import Document, RerankOptions, RerankRequest
from farrank_bench.report import Command, Heading, Measure, Row, below, spread
from farrank_bench.rounds import Child, child
from farrank_bench.served import RANKER
from farrank_cli.spawn import spawned_server
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

# The server tells HTTP callers apart by their addresses.
GREEDY, MODEST = "127.0.0.2", "127.0.0.3"
SMALL_BYTES = 70_000
ALONE_S = 3.0
AT_ONCE_BYTES = 5 * 10**6


def checked(connection: Connection, address: str) -> None:
    """Check health every 10 ms between two questions. Answer with the longest check in ms."""
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


def ask_grpc(address: str, data: bytes, compression: grpc.Compression | None = None) -> str:
    """Send bytes over gRPC, on a connection of their own. Returns the status."""
    # Without a local pool, channels with equal arguments share one connection.
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        call: Callable[..., bytes] = channel.unary_unary(METHOD)
        try:
            call(data, timeout=TIMEOUT_S, compression=compression)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"


def ask_http(url: str, path: str, data: bytes, caller: str = "") -> str:
    """Send JSON from an address of the loopback network. Returns the status."""
    connection = http.client.HTTPConnection(
        url.removeprefix("http://"), timeout=TIMEOUT_S, source_address=(caller, 0) if caller else None
    )
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    finally:
        connection.close()


def long_texts(size: int, document_bytes: int = DOCUMENT_BYTES) -> list[str]:
    """Make documents of almost `document_bytes` each, which together have almost `size` bytes."""
    words = "the sea carries what is lighter than the water that it takes the place of "
    text = words * (document_bytes // len(words) + 1)
    return [text[: document_bytes - 256]] * (size // document_bytes)


def as_protobuf(size: int, document_bytes: int = DOCUMENT_BYTES, ranker: str = RANKER) -> bytes:
    """Write a request of long texts as protobuf, for gRPC."""
    documents = [Document(text=text) for text in long_texts(size, document_bytes)]
    options = RerankOptions(ranker=ranker)
    return RerankRequest(query=QUERY, documents=documents, options=options).SerializeToString()


def as_json(size: int, document_bytes: int = DOCUMENT_BYTES, ranker: str = RANKER) -> bytes:
    """Write a request of long texts as JSON, for Connect."""
    documents = [{"text": text} for text in long_texts(size, document_bytes)]
    return json.dumps({"query": QUERY, "documents": documents, "options": {"ranker": ranker}}).encode()


def empty_documents(size: int) -> bytes:
    """Write a request of `size` bytes with only empty documents, which are more than a server accepts."""
    query = RerankRequest(query=QUERY).SerializeToString()
    return query + b"\x12\x00" * ((size - len(query)) // 2)


def empty_values(size: int) -> bytes:
    """Write a JSON request of about `size` bytes with only empty documents."""
    return b'{"query": "sea", "documents": [%s{}]}' % (b"{}," * (size // 3 - 20))


class ProcessMemory:
    """The memory of a process, as the kernel reports it."""

    def __init__(self, pid: int) -> None:
        self._files = Path(f"/proc/{pid}")

    def begin(self) -> None:
        """Reset the peak memory."""
        (self._files / "clear_refs").write_text("5")
        self._before = self._bytes("VmRSS")

    def grown(self) -> int:
        """Return by how many bytes the peak since `begin` exceeds the memory at that time."""
        return self._bytes("VmHWM") - self._before

    def _bytes(self, name: str) -> int:
        lines = (self._files / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def measure_request(
    checks: Child, memory: ProcessMemory, ask: Callable[[bytes], str], data: bytes, rounds: int
) -> list[Row]:
    """Send a request in each round. Report the longest health check meanwhile, and the server's memory."""
    longest, grown, took, statuses = [], [], [], set()
    for _ in range(rounds):
        memory.begin()
        checks.ask()
        begun_s = time.perf_counter()
        statuses.add(ask(data))
        took.append(time.perf_counter() - begun_s)
        longest.append(checks.ask())
        grown.append(memory.grown() / len(data))
    return [
        below(f"longest health check, ms ({', '.join(sorted(statuses))})", longest, STALL_MS, ".1f"),
        Row("growth of peak memory over the request's bytes", spread(grown, ".2f")),
        Row("until the answer, s", spread(took, ".2f")),
    ]


@dataclass(slots=True)
class ProbeTimes:
    """Milliseconds of health checks, of the event loop's processor time in each, and of the other caller."""

    checks: list[float] = field(default_factory=list)
    loop: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)
    failed: int = 0


def probed(connection: Connection, address: str, url: str, pid: int) -> None:
    """Between two questions, check health every 10 ms and rerank without pause. Answer with the times."""
    small = as_json(SMALL_BYTES, SMALL_BYTES)
    schedule = Path(f"/proc/{pid}/task/{pid}/schedstat")

    def loop_ms() -> float:
        return int(schedule.read_text().split()[0]) / 1e6

    def rerank(found: ProbeTimes, ends: threading.Event) -> None:
        while not ends.is_set():
            begun_s = time.perf_counter()
            found.failed += ask_http(url, METHOD, small, MODEST) != "200"
            found.calls.append(1e3 * (time.perf_counter() - begun_s))

    with grpc.insecure_channel(address) as channel:
        check, request = HealthStub(channel).Check, HealthCheckRequest()
        check(request, timeout=TIMEOUT_S)
        ask_http(url, METHOD, small, MODEST)
        while True:
            connection.recv()
            connection.send(None)
            found, ends = ProbeTimes(), threading.Event()
            reranking = threading.Thread(target=rerank, args=(found, ends))
            reranking.start()
            while True:
                begun_s, loop_begun_ms = time.perf_counter(), loop_ms()
                check(request, timeout=TIMEOUT_S)
                found.checks.append(1e3 * (time.perf_counter() - begun_s))
                found.loop.append(loop_ms() - loop_begun_ms)
                if connection.poll(EVERY_S):
                    break
            ends.set()
            reranking.join()
            connection.recv()
            connection.send(found)


def at_once(
    start: Sequence[str], endpoint: str, count: int, size: int, rounds: int, ranker: str
) -> list[Row]:
    """Send requests at once in each round. Report the times of another caller's calls, and the memory."""
    is_http = endpoint == "HTTP"
    # Few documents, so that reading them takes longer than scoring.
    data = (as_json if is_http else as_protobuf)(size, size // math.ceil(size / AT_ONCE_BYTES), ranker)
    alone, during, grown, took, answers = [], [], [], [], Counter[str]()
    for _ in range(rounds):
        with spawned_server(start) as server:
            memory = ProcessMemory(server.process.pid)
            ask = partial(ask_grpc, server.address)
            if is_http:
                ask = partial(ask_http, server.http_url, METHOD, caller=GREEDY)
            with child("probed", probed, server.address, server.http_url, server.process.pid) as probe:
                probe.ask()
                time.sleep(ALONE_S)
                alone.append(probe.ask())
                memory.begin()
                probe.ask()
                begun_s = time.perf_counter()
                with ThreadPoolExecutor(count) as crowd:
                    answers.update(crowd.map(ask, [data] * count))
                took.append(time.perf_counter() - begun_s)
                during.append(probe.ask())
                grown.append(memory.grown() / 2**20)

    def calls(found: list[ProbeTimes], figure: Callable[[list[float]], float]) -> list[float]:
        return [figure(each.calls) for each in found]

    ratios = [mine / its for mine, its in zip(calls(during, median), calls(alone, median), strict=True)]
    failed = sum(each.failed for each in (*alone, *during))
    return [
        Row("the other caller's call of 70 KB alone, median, ms", spread(calls(alone, median), ".1f")),
        Row("the longest alone, ms", spread(calls(alone, max), ".0f")),
        Row("its call during the large requests, median, ms", spread(calls(during, median), ".1f")),
        Row("the longest then, ms", spread(calls(during, max), ".0f")),
        Row("ratio of the medians", spread(ratios, ".2f")),
        Row("failed calls of the other caller", str(failed), "0", failed == 0),
        Row("longest health check, ms", spread([max(each.checks) for each in during], ".0f")),
        Row("most processor time of the loop in a check, ms", spread([max(x.loop) for x in during], ".0f")),
        Row("growth of peak memory, MiB", spread(grown, ".0f")),
        Row("until the last answer, s", spread(took, ".1f")),
        Row("answers, all rounds", ", ".join(f"{status}: {n}" for status, n in sorted(answers.items()))),
    ]


def started(scratch: Path) -> list[str]:
    """Write a ranker and return the server's arguments."""
    artifact = scratch / "ranker"
    save_ranker(new_ranker("maxp", EMBEDDED, seed=1, max_document_tokens=128), artifact)
    return [f"--ranker={RANKER}={artifact}", "--http-port=0", "--log-level=error", "--device=cpu"]


def parts_at_once(rounds: int, scratch: Path) -> Iterator[tuple[str, Measure]]:
    """Send large requests at once. Requests for a ranker that does not exist cost only their reading."""
    start = started(scratch)
    yield "HTTP, 24 refused bodies of 23 MB", partial(at_once, start, "HTTP", 24, 23 * 10**6, rounds, "none")
    for count, size in ((40, 20 * 10**6), (100, 8_600_000)):
        for endpoint in ("HTTP", "gRPC"):
            title = f"{endpoint}, {count} requests of {size / 1e6:g} MB"
            yield title, partial(at_once, start, endpoint, count, size, rounds, RANKER)


def parts(rounds: int, scratch: Path) -> Iterator[tuple[str, Measure]]:
    """Start the server, and yield one kind of request after the other."""
    arguments = started(scratch)
    limit = LimitsConfig().max_request_bytes
    with spawned_server(arguments) as server, child("checks", checked, server.address) as checks:
        over_grpc, connect = partial(ask_grpc, server.address), partial(ask_http, server.http_url, METHOD)
        own = partial(ask_http, server.http_url, "/rerank")
        memory = ProcessMemory(server.process.pid)
        kinds: list[tuple[str, Callable[[bytes], str], Callable[[int], bytes], float]] = [
            ("gRPC, documents of 1 MB", over_grpc, as_protobuf, 1),
            ("HTTP, documents of 1 MB", connect, as_json, 1),
            ("gRPC, empty documents", over_grpc, empty_documents, 1),
            ("HTTP, empty documents", own, empty_values, 1),
            ("gRPC, beyond the limit", over_grpc, empty_documents, 1.02),
            ("gRPC, twice the limit", over_grpc, empty_documents, 2),
            ("HTTP, twice the limit", own, empty_values, 2),
        ]
        for title, ask, make, times in kinds:
            data = make(int(limit * times))
            yield (
                f"{title}, {len(data) / 2**20:.1f} MiB",
                partial(measure_request, checks, memory, ask, data, rounds),
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each kind of request."""
    command = Command("farrank_bench.large_requests", __doc__)
    command.options.add_argument("--rounds", type=int, default=5, help="requests of each kind (%(default)s)")
    command.options.add_argument("--at-once", action="store_true", help="send many requests at once instead")
    command.options.add_argument("--only", default="", help="with --at-once: only titles with this text")
    given = command.parse(arguments)
    if sys.platform != "linux":
        command.options.error("needs Linux: it reads memory from /proc")
    notes = f"a health check every {EVERY_S * 1e3:.0f} ms; medians of rounds (smallest to largest)"
    with tempfile.TemporaryDirectory() as scratch:
        if given.at_once:
            all_parts = parts_at_once(given.rounds, Path(scratch))
            its = ((title, measure) for title, measure in all_parts if given.only in title)
            return command.report(Heading("Large requests at once", notes), its, given.out)
        return command.report(Heading("Large requests", notes), parts(given.rounds, Path(scratch)), given.out)


if __name__ == "__main__":
    sys.exit(main())
