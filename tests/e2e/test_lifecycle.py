"""The start and end of a server: ports, drains, signals, refusals at the start."""

import math
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file, save_file

from farrank.v1 import rerank_pb2, rerank_pb2_grpc
from farrank_cli.main import main
from farrank_cli.spawn import spawned_server
from farrank_client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    ResourceExhausted,
    RetryPolicy,
    Tls,
    Unavailable,
)
from farrank_server.config.schema import DeviceConfig, ListenConfig, RankerConfig, ServerConfig, TlsConfig
from farrank_server.replica import Replica

if TYPE_CHECKING:
    from support.tls_files import TlsFiles

ONCE = RetryPolicy(max_attempts=1)
LONG_TEXTS = ["the river meets the sea " * 280] * 10


def test_sigterm_reports_not_serving_refuses_new_calls_and_answers_the_admitted(
    tiny_rankers: dict[str, Path],
    metric_of: Callable[..., float],
    until: Callable[[Callable[[], bool]], None],
) -> None:
    arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", "--log-level=warning"]
    arguments += ["--set=listen.drain_timeout_s=250"]
    with (
        spawned_server(arguments) as server,
        Client(server.address, retry=ONCE) as client,
        grpc.insecure_channel(server.address) as channel,
        ThreadPoolExecutor(1) as callers,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        watched = health.Watch(health_pb2.HealthCheckRequest(service="farrank.v1.RerankService"))
        assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
        # The client waits for its connection, so that the server refuses the late call below, not the
        # network.
        assert client.is_healthy()
        admitted = callers.submit(client.rerank, "sea", LONG_TEXTS, depth="all", timeout_s=3600)
        # Their work lasts for longer than the rest of this test, on any machine. The test cancels them.
        documents = [rerank_pb2.Document(text=text) for text in LONG_TEXTS * 40]
        endless = rerank_pb2.RerankRequest(query="sea", documents=documents)
        endless.options.depth.mode = rerank_pb2.DEPTH_MODE_ALL
        service = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
        held = [service.Rerank.future(endless, timeout=3600) for _ in range(2)]
        until(lambda: metric_of(server, "farrank_requests_in_flight", method="Rerank") == 3)
        server.process.terminate()
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        # A caller that has not noticed is still answered, and refused a moment later.
        with pytest.raises(Unavailable, match="draining"):  # noqa: PT012
            while True:
                client.rerank("sea", ["late"])
        # A supervisor that killed the process for this would lose admitted calls.
        alive = health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=60)
        assert alive.status == health_pb2.HealthCheckResponse.SERVING
        page = server.metrics_url.removesuffix("/metrics")
        assert urllib.request.urlopen(f"{page}/livez", timeout=60).status == 200
        with pytest.raises(urllib.error.HTTPError) as not_ready:
            urllib.request.urlopen(f"{page}/readyz", timeout=60)
        assert not_ready.value.code == 503
        not_ready.value.close()
        assert not client.is_healthy()
        assert len(admitted.result().results) == len(LONG_TEXTS)
        for each in held:
            each.cancel()
        assert server.process.wait(120) == 0


def test_a_drain_ends_when_its_time_is_over(
    tiny_rankers: dict[str, Path],
    metric_of: Callable[..., float],
    until: Callable[[Callable[[], bool]], None],
) -> None:
    arguments = [
        f"--ranker=maxp={tiny_rankers['maxp']}",
        "--log-level=error",
        "--set=listen.drain_timeout_s=0.2",
    ]
    with (
        spawned_server(arguments) as server,
        Client(server.address, retry=ONCE) as client,
        ThreadPoolExecutor(8) as callers,
    ):
        calls = [
            callers.submit(client.rerank, "sea", LONG_TEXTS * 10, depth="all", timeout_s=36_000)
            for _ in range(4)
        ]
        until(lambda: metric_of(server, "farrank_requests_in_flight", method="Rerank") == 4)
        started_s = time.monotonic()
        server.process.terminate()
        assert server.process.wait() == 0
        assert time.monotonic() - started_s < 25, "the usual drain is 30 s"
        failures = [each.exception() for each in calls]
        assert any(failures)
        assert {type(error) for error in failures} <= {type(None), Unavailable}


def test_a_taken_port_stops_the_start_at_once(
    tiny_rankers: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [f"--ranker=maxp={tiny_rankers['maxp']}", f"--port={port}", "--metrics-port=none"]
        assert main(["serve", *flags]) == 2
    assert f"127.0.0.1:{port} cannot be bound" in capsys.readouterr().err


async def test_a_server_with_certificates_takes_only_callers_that_show_theirs(
    tiny_rankers: dict[str, Path], tls_files: "TlsFiles"
) -> None:
    files = (tls_files.certificate, tls_files.private_key, tls_files.authority)
    config = ServerConfig(
        rankers={"maxp": RankerConfig(str(tiny_rankers["maxp"]))},
        listen=ListenConfig(port=0, metrics_port=None, tls=TlsConfig(*files)),
        device=DeviceConfig(threads=1),
    )
    known = Tls(tls_files.authority, *files[:2], server_name="farrank.test")
    hidden = Tls(tls_files.authority, server_name="farrank.test")
    async with Replica(config) as server:
        async with AsyncClient(server.address, tls=known, retry=ONCE) as client:
            assert len((await client.rerank("sea", ["the river", "the sea"])).results) == 2
        async with AsyncClient(server.address, tls=hidden, retry=ONCE) as client:
            with pytest.raises(Unavailable):
                await client.rerank("sea", ["the river"])


def test_certificates_that_cannot_be_used_stop_the_start(
    tmp_path: Path, tls_files: "TlsFiles", capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "garbage.pem").write_text("no certificate")
    for certificate, message in (("garbage.pem", "listen.tls"), ("absent.pem", "absent.pem cannot be read")):
        flags = [
            f"--set=listen.tls.certificate={tmp_path / certificate}",
            f"--set=listen.tls.private_key={tls_files.private_key}",
        ]
        assert main(["serve", "--port=0", "--metrics-port=none", *flags]) == 2
        assert message in capsys.readouterr().err


def test_a_failed_start_leaves_no_port_open() -> None:
    # A loopback address on which no other process listens.
    host = "127.0.0.77"
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    flags = [f"--set=listen.host={host}", "--port=0", f"--metrics-port={port}"]
    assert main(["serve", "--ranker=x=/nowhere", *flags]) == 2
    socket.create_server((host, port)).close()


def test_a_signal_before_healthy_ends_the_start() -> None:
    command = [sys.executable, "-m", "farrank_cli", "serve", "--port=0", "--metrics-port=none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        while "loading" not in process.stderr.readline():
            assert process.poll() is None
        process.terminate()
        assert process.wait(120) == 0
        assert "healthy" not in process.stdout.read()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ranker=x=/nowhere"], "rankers.x: "),
        (["--device=cuda:99"], "device.name: 'cuda:99' is not here"),
        (["--device=toaster"], "device.name: 'toaster' is not a device"),
        (["--set=batching.max_batch_tokens=20"], "batching.max_batch_tokens: 20 is too small for ranker"),
        (["--index=x=/nowhere"], "/nowhere"),
        (["--set=rankers.minilm.window=100000"], "window"),
    ],
)
def test_problems_stop_the_start_with_one_line(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port=0", "--metrics-port=none", *flags]) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert message in printed[-1]
    assert not any("Traceback" in line for line in printed)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("bit", "model.safetensors is damaged: its weights have the digest"),
        ("nan", "word_embeddings.weight has values that are not finite numbers"),
        # Each weight is a finite number, but their products are not.
        ("large", "gives a document the score nan, which is not a finite number"),
    ],
)
def test_damaged_weights_stop_the_start_with_one_line(
    tiny_rankers: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: str,
    message: str,
) -> None:
    folder = shutil.copytree(tiny_rankers["maxp"], tmp_path / "maxp")
    path = folder / "model.safetensors"
    if damage == "bit":
        data = bytearray(path.read_bytes())
        data[-100] ^= 16
        path.write_bytes(data)
    else:
        tensors = load_file(path)
        name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
        if damage == "nan":
            tensors[name][5000, 3] = math.nan  # no text at the start has this token
        else:
            tensors[name][:] = 3e38
        save_file(tensors, path)
    assert main(["serve", "--port=0", "--metrics-port=none", f"--ranker=a={folder}"]) == 2
    printed = [line for line in capsys.readouterr().err.strip().splitlines() if "farrank serve" in line]
    assert len(printed) == 1
    assert printed[0].startswith("farrank serve: rankers.a: ")
    assert message in printed[0]


def test_offered_too_much_it_answers_what_it_can_and_refuses_the_rest_clearly(
    tiny_rankers: dict[str, Path],
) -> None:
    arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", "--log-level=error"]
    with (
        spawned_server(arguments) as server,
        Client(server.address, retry=ONCE) as client,
        ThreadPoolExecutor(30) as callers,
    ):
        began_s = time.monotonic()
        client.rerank("sea", LONG_TEXTS, timeout_s=250)
        # Time for some of 30 calls at once, but not for all, however fast this machine is now.
        timeout_s = 10 * (time.monotonic() - began_s)

        def ask(number: int) -> str:
            try:
                client.rerank("sea", LONG_TEXTS, timeout_s=timeout_s)
            except ResourceExhausted as error:
                return "refused" if error.retry_after_s else "refused without a hint"
            except DeadlineExceeded:
                return "late"
            return "answered"

        statuses: list[str] = []
        # A machine that slows down after the first call makes a whole round late.
        for _ in range(5):
            statuses += callers.map(ask, range(60))
            if {"answered", "refused"} <= set(statuses):
                break
        assert statuses.count("answered") > 0
        assert statuses.count("refused") > 0
        assert "refused without a hint" not in statuses
        assert len(client.rerank("sea", ["after the storm"]).results) == 1
