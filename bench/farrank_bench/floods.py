"""Measure the cost of a hostile gRPC caller to others: their health checks and calls, and memory.

python -m farrank_bench.floods

One caller, at 127.0.0.2, attacks with raw HTTP/2 frames. Another, at 127.0.0.1, checks health and reranks one
short document every 20 ms. Each attack is bounded in count and lasts some seconds.
"""

import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from hpack import Encoder, NeverIndexedHeaderTuple
from hyperframe.frame import DataFrame, HeadersFrame, RstStreamFrame, SettingsFrame

from farrank.v1.rerank_pb2 import Document, RerankRequest
from farrank_bench.large_requests import METHOD, ProcessMemory, ask_grpc, started
from farrank_bench.report import Command, Heading, Measure, Row, below
from farrank_bench.rounds import Child, child
from farrank_cli.spawn import spawned_server

CHECK = "/grpc.health.v1.Health/Check"
EVERY_S = 0.02
HELD_S = 3.0
STALL_MS = 300.0
TIMEOUT_S = 60.0
ATTACKER = "127.0.0.2"

HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "flood"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


class Attacker:
    """A connection of the hostile caller. It reads frames, but its flow-control window admits no answers."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), source_address=(ATTACKER, 0))
        window = SettingsFrame(settings={SettingsFrame.INITIAL_WINDOW_SIZE: 0})
        frames = window.serialize() + SettingsFrame(flags=["ACK"]).serialize()
        self.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames)
        threading.Thread(target=self._drain, daemon=True).start()

    def send(self, data: bytes) -> None:
        """Send frames. Does nothing if the server has closed the connection."""
        try:
            self._socket.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _drain(self) -> None:
        try:
            while self._socket.recv(2**20):
                pass
        except OSError:
            return


def streams(path: str, count: int, request: bytes | None, *, reset: bool = False) -> Iterator[bytes]:
    """Write calls: headers, a request (None: only headers), and with `reset` a reset of the stream."""
    # Without the dynamic table, so that the same block serves all streams and connections.
    fields = [NeverIndexedHeaderTuple(*each) for each in ((":path", path), *HEADERS)]
    block = Encoder().encode(fields, huffman=False)
    for stream in range(1, 2 * count, 2):
        data = HeadersFrame(stream, block, flags=["END_HEADERS"]).serialize()
        if request is not None:
            message = b"\x00" + struct.pack(">I", len(request)) + request
            data += DataFrame(stream, message, flags=["END_STREAM"]).serialize()
        if reset:
            data += RstStreamFrame(stream, error_code=8).serialize()
        yield data


def flood(address: str, *, connections: int, calls: Callable[[], Iterator[bytes]]) -> None:
    """Send calls on some connections, and keep these open for a while."""
    with ExitStack() as opened:
        for _ in range(connections):
            attacker = Attacker(address)
            opened.callback(attacker.close)
            attacker.send(b"".join(calls()))
        time.sleep(HELD_S)


def compressed(address: str, *, calls: int) -> None:
    """Send messages that unpack to 20 MB each."""
    for _ in range(calls):
        ask_grpc(address, bytes(20 * 10**6), grpc.Compression.Gzip)


def large(address: str, *, calls: int) -> None:
    """Send complete requests of 20 MB at once, each on its own connection."""
    data = RerankRequest(query="sea", documents=[Document(text="a" * 2**20)] * 19).SerializeToString()

    with ThreadPoolExecutor(calls) as crowd:
        list(crowd.map(partial(ask_grpc, address), [data] * calls))


def asked(connection: Connection, address: str) -> None:
    """Check health and rerank every 20 ms between two questions. Answer with longest times and failures."""
    data = RerankRequest(query="sea", documents=[Document(text="a ship")]).SerializeToString()
    with grpc.insecure_channel(address) as channel:
        check = HealthStub(channel).Check
        rerank: Any = channel.unary_unary(METHOD)
        calls = {"health": partial(check, HealthCheckRequest()), "rerank": partial(rerank, data)}
        for call in calls.values():
            call(timeout=TIMEOUT_S)
        while True:
            connection.recv()
            connection.send(None)
            longest, failed = dict.fromkeys(calls, 0.0), 0
            while not connection.poll(EVERY_S):
                for name, call in calls.items():
                    begun_s = time.perf_counter()
                    try:
                        call(timeout=TIMEOUT_S)
                    except grpc.RpcError:
                        failed += 1
                    longest[name] = max(longest[name], 1e3 * (time.perf_counter() - begun_s))
            connection.recv()
            connection.send((longest["health"], longest["rerank"], failed))


def measure_attack(probe: Child, memory: ProcessMemory, attack: Callable[[], None]) -> list[Row]:
    """Attack once. Report the other caller's waits, and the server's memory."""
    memory.begin()
    probe.ask()
    attack()
    health_ms, rerank_ms, failed = probe.ask()
    return [
        below("longest health check, ms", [health_ms], STALL_MS, ".0f"),
        below("longest rerank, ms", [rerank_ms], STALL_MS, ".0f"),
        Row("failed calls of the other caller", str(failed), "0", failed == 0),
        Row("growth of peak memory, MiB", f"{memory.grown() / 2**20:.0f}"),
    ]


def parts(scratch: Path) -> Iterator[tuple[str, Measure]]:
    """Start a server, and yield one attack after the other."""
    small = RerankRequest(query="sea", documents=[Document(text="a ship")]).SerializeToString()
    with spawned_server(started(scratch)) as server, child("asked", asked, server.address) as probe:
        many = partial(flood, server.address)
        attacks: dict[str, Callable[[], None]] = {
            "60,000 streams, each reset": partial(
                many, connections=1, calls=partial(streams, METHOD, 60_000, None, reset=True)
            ),
            "60,000 calls": partial(many, connections=1, calls=partial(streams, METHOD, 60_000, b"")),
            "12,000 health checks unread": partial(
                many, connections=24, calls=partial(streams, CHECK, 500, b"")
            ),
            "7,000 reranks unread": partial(many, connections=14, calls=partial(streams, METHOD, 500, small)),
            "1,500 half-sent calls": partial(many, connections=3, calls=partial(streams, METHOD, 500, None)),
            "1,500 half-sent health checks": partial(
                many, connections=3, calls=partial(streams, CHECK, 500, None)
            ),
            "20 messages that unpack to 20 MB": partial(compressed, server.address, calls=20),
            "40 complete requests of 20 MB at once": partial(large, server.address, calls=40),
        }
        memory = ProcessMemory(server.process.pid)
        for title, attack in attacks.items():
            yield title, partial(measure_attack, probe, memory, attack)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each attack."""
    command = Command("farrank_bench.floods", __doc__)
    given = command.parse(arguments)
    if sys.platform != "linux":
        command.options.error("needs Linux: it reads memory from /proc and connects from 127.0.0.2")
    notes = f"another caller checks health and reranks every {EVERY_S * 1e3:.0f} ms; one attack per table"
    with tempfile.TemporaryDirectory() as scratch:
        return command.report(Heading("Floods", notes), parts(Path(scratch)), given.out)


if __name__ == "__main__":
    sys.exit(main())
