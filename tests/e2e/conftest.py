"""A real server in its own process, over real sockets, with tiny rankers and a real index."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client, RetryPolicy

LIMITS = {
    "max_documents": 40,
    "max_document_bytes": 11_000_000,
    "max_query_bytes": 50_000,
    "max_request_bytes": 12_000_000,
    "max_queued_tokens": 200_000,
}

COLLECTION = {
    "rivers": "The river rises in the mountains and reaches the sea. " * 40,
    "ships": "A ship sails over the sea towards the harbour. " * 40,
    "bread": "Bread is baked from flour, water, salt and yeast. " * 40,
}


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("e2e-index")
    collection = folder / "collection.jsonl"
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in COLLECTION.items()]
    collection.write_text("\n".join(lines))
    assert main(["index", str(collection), "--out", str(folder / "index")]) == 0
    return folder / "index"


@pytest.fixture(scope="session")
def server(tiny_rankers: dict[str, Path], index_folder: Path) -> Iterator[SpawnedServer]:
    arguments = [f"--ranker={name}={path}" for name, path in tiny_rankers.items()]
    arguments += [f"--index=things={index_folder}", f"--index=same={index_folder}", "--log-level=warning"]
    arguments += [f"--set=limits.{name}={value}" for name, value in LIMITS.items()]
    with spawned_server(arguments) as spawned:
        yield spawned


@pytest.fixture
def client(server: SpawnedServer) -> Iterator[Client]:
    with Client(server.address, retry=RetryPolicy(max_attempts=1)) as opened:
        yield opened


@pytest.fixture
def metric(server: SpawnedServer, metric_of: Callable[..., float]) -> Callable[..., float]:
    """Read a sample's value from the shared server's page."""
    return partial(metric_of, server)


@pytest.fixture
def metric_of() -> Callable[..., float]:
    """Read a sample's value from a server's page, summed over the labels that are not given."""

    def read(server: SpawnedServer, name: str, **labels: str) -> float:
        with urllib.request.urlopen(server.metrics_url) as page:
            text = page.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    return read


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for a change that the server makes a moment after its answer."""

    def wait(holds: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + 120
        while not holds():
            assert time.monotonic() < ends_s, "it never came about"
            time.sleep(0.02)

    return wait
