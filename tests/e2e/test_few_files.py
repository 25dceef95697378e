"""A server that may open few files, and callers that open more connections than that."""

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from farrank_cli.spawn import SpawnedServer
from support import forked

FILES = 1024
CONNECTIONS = 1100
# The second value is the hard limit; the server raises the first.
SERVE = f"""
import resource, sys
from farrank_cli.main import main
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
sys.exit(main(sys.argv[1:]))
"""
GREEDY = "127.0.0.2"
HALF_HEADERS = b"POST /rerank HTTP/1.1\r\nHost: a\r\n"
HTTP2_BEGINS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# The number of lines that the server may log while the connections are open.
MAX_LINES = 10
ANSWERED_S = 60.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def server(tiny_rankers: dict[str, Path], log: Path) -> Iterator[SpawnedServer]:
    ports = ["--port=0", "--http-port=0", "--metrics-port=0"]
    command = [sys.executable, "-c", SERVE, "serve", f"--ranker=maxp={tiny_rankers['maxp']}", *ports]
    with (
        log.open("wb") as file,
        forked.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            healthy = process.stdout.readline()
            assert healthy.startswith("healthy "), log.read_text()
            fields = dict(each.split("=", 1) for each in healthy.split()[1:])
            yield SpawnedServer(fields["grpc"], fields["metrics"], fields["http"], process)
        finally:
            process.terminate()
            process.wait()


def is_healthy_over_grpc(server: SpawnedServer) -> bool:
    # A new connection, not one that existed before.
    with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        answer = HealthStub(channel).Check(HealthCheckRequest(), wait_for_ready=True, timeout=ANSWERED_S)
    return bool(answer.status == HealthCheckResponse.SERVING)


def is_healthy_over_http(server: SpawnedServer) -> bool:
    with urllib.request.urlopen(f"{server.http_url}/health", timeout=ANSWERED_S) as answer:
        return bool(answer.status == 200)


def test_half_headers_on_more_connections_than_files_lock_no_caller_out(
    server: SpawnedServer, log: Path, metric_of: Callable[..., float]
) -> None:
    before = log.read_bytes().count(b"\n")
    address = urlsplit(server.http_url)
    with ExitStack() as opened:
        for _ in range(CONNECTIONS):
            connection = socket.create_connection(
                (address.hostname, address.port), source_address=(GREEDY, 0)
            )
            opened.enter_context(connection).sendall(HALF_HEADERS)
        assert is_healthy_over_grpc(server)
        assert is_healthy_over_http(server)
        open_now = metric_of(server, "farrank_http_connections")
        assert open_now <= metric_of(server, "farrank_http_connections_limit") == FILES // 2
        assert metric_of(server, "farrank_http_connections_ended_total", why="files") == 0
        assert metric_of(server, "farrank_http_connections_ended_total", why="room") > CONNECTIONS - FILES
        assert log.read_bytes().count(b"\n") - before <= MAX_LINES


def test_more_grpc_connections_than_files_lock_no_caller_out(
    server: SpawnedServer,
    log: Path,
    metric_of: Callable[..., float],
    until: Callable[[Callable[[], bool]], None],
) -> None:
    before = log.read_bytes().count(b"\n")
    host, _, port = server.address.rpartition(":")
    with ExitStack() as opened:
        for _ in range(CONNECTIONS):
            connection = socket.create_connection((host, int(port)), source_address=(GREEDY, 0))
            opened.enter_context(connection).sendall(HTTP2_BEGINS)
        assert is_healthy_over_grpc(server)
        assert is_healthy_over_http(server)
        until(lambda: metric_of(server, "farrank_grpc_connections_ended_total") > CONNECTIONS - FILES)
        assert log.read_bytes().count(b"\n") - before <= MAX_LINES
