"""Texts that take long to read: their caller delays no other caller, and occupies nothing for long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from farrank.v1 import rerank_pb2 as pb
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client, RetryPolicy

METHOD = "/farrank.v1.RerankService/Rerank"
SMALL = ["the river rises in the mountains", "bread is baked from flour"]

# Many tokens without a word boundary: in one piece, 16 MB took a minute.
LONG = "!" * 15_000_000


@pytest.fixture(scope="module")
def server(tiny_rankers: dict[str, Path]) -> Iterator[SpawnedServer]:
    arguments = [f"--ranker=maxp={tiny_rankers['maxp']}", "--log-level=warning"]
    arguments += [
        "--set=tokenizer_threads=2",
        "--set=cache_bytes=0",
        "--set=limits.max_request_bytes=67108864",
    ]
    with spawned_server(arguments) as spawned:
        yield spawned


@pytest.fixture
def client(server: SpawnedServer) -> Iterator[Client]:
    with Client(server.address, retry=RetryPolicy(max_attempts=1)) as opened:
        yield opened


@contextmanager
def being_read(
    server: SpawnedServer, metric_of: Callable[..., float], until: Callable[[Callable[[], bool]], None]
) -> Iterator[None]:
    """Let the server count long texts to their end until the call is cancelled."""
    request = pb.RerankRequest(
        query="river",
        documents=[pb.Document(text=LONG)] * 3,
        options=pb.RerankOptions(count_tokens_cut=True),
    )
    with grpc.insecure_channel(server.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        method: Any = channel.unary_unary(METHOD)
        call = method.future(request.SerializeToString(), timeout=600)
        until(lambda: metric_of(server, "farrank_held_characters") >= 3 * len(LONG) or call.done())
        try:
            yield
            assert not call.done(), call
        finally:
            call.cancel()


def test_small_calls_are_answered_while_long_texts_are_read_and_soon_after_these_are_abandoned(
    server: SpawnedServer,
    client: Client,
    metric_of: Callable[..., float],
    until: Callable[[Callable[[], bool]], None],
) -> None:
    def ask() -> None:
        assert len(client.rerank("river", SMALL, timeout_s=60).results) == len(SMALL)

    with being_read(server, metric_of, until):
        for _ in range(5):
            ask()
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    # The server's threads are free again, and the call's room is released.
    until(lambda: metric_of(server, "farrank_held_characters") == 0)
    ask()
    after = process.cpu_times()
    # Some 30 ms of processor time; reading the texts to their end would take tens of seconds of it.
    assert after.user + after.system - before.user - before.system < 3
