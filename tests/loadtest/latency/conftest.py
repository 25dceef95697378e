"""A real server with tiny rankers, and `farrank` as a function."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from farrank_cli.spawn import SpawnedServer, spawned_server


@pytest.fixture(scope="session")
def server(tiny_rankers: dict[str, Path]) -> Iterator[SpawnedServer]:
    arguments = [f"--ranker={name}={tiny_rankers[name]}" for name in ("maxp", "firstp", "biencoder")]
    # On a busy machine, threads that wait for each other take a hundred times as long.
    with spawned_server([*arguments, "--threads=1", "--http-port=0", "--log-level=warning"]) as spawned:
        yield spawned
