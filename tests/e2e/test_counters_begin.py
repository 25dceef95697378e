"""A server shows each counter and histogram at 0 before the first call, and calls add no other series."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client import Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from farrank_calls.key_file import add_key
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client, FarrankError, RetryPolicy
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.files.open import open_ranker
from farrank_server.metrics import Metrics

Series = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.toml"


@pytest.fixture(scope="module")
def api_key(key_file: Path) -> str:
    return add_key(key_file, "team", {})


@pytest.fixture(scope="module")
def server(
    tiny_rankers: dict[str, Path], index_folder: Path, key_file: Path, api_key: str
) -> Iterator[SpawnedServer]:
    members = {name: open_ranker(tiny_rankers[name]) for name in ("maxp", "biencoder")}
    both = key_file.parent / "both"
    save_ensemble(Ensemble(members), both)
    arguments = [f"--ranker={name}={tiny_rankers[name]}" for name in members]
    arguments += [f"--ranker=both={both}", f"--index=things={index_folder}"]
    arguments += ["--log-level=error", "--http-port=0", f"--keys={key_file}"]
    with spawned_server(arguments) as spawned:
        yield spawned


def counted(server: SpawnedServer) -> dict[Series, float]:
    """Return the samples of the page's counters and histograms, except the process's own."""
    with urllib.request.urlopen(server.metrics_url) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if family.type in ("counter", "histogram") and not family.name.startswith("process_")
    }


def test_all_begin_at_0_and_no_call_brings_another_series(server: SpawnedServer, api_key: str) -> None:
    fresh = counted(server)
    # The names that the server's instruments have on the page.
    instruments = [each for each in vars(Metrics()).values() if isinstance(each, Counter | Histogram)]
    expected = {
        f"{each._name}_total" if isinstance(each, Counter) else f"{each._name}_count" for each in instruments
    }
    assert len(expected) > 30
    assert expected <= {name for name, _ in fresh}
    assert {series: value for series, value in fresh.items() if value} == {}

    _call_in_every_way(server, api_key)
    wait_until_counted(server, "farrank_requests_total", method="SearchAndRerank", code="OK", ranker="both")
    after = counted(server)
    assert any(after.values())
    assert after.keys() - fresh.keys() == set()


def wait_until_counted(server: SpawnedServer, name: str, **labels: str) -> None:
    ends_s = time.monotonic() + 60
    while not any(
        value and found == name and labels.items() <= dict(of).items()
        for (found, of), value in counted(server).items()
    ):
        assert time.monotonic() < ends_s, f"{name} {labels} was never counted"
        time.sleep(0.02)


def _call_in_every_way(server: SpawnedServer, api_key: str) -> None:
    once = RetryPolicy(max_attempts=1)
    long = ["the river and the sea " * 150, "bread", ""]
    with Client(server.address, api_key=api_key, retry=once) as client:
        client.rankers()
        for ranker in ("maxp", "biencoder", "both", "biencoder"):
            client.rerank("river " * 40, long, ranker=ranker)
        for ranker in ("a-name-of-the-callers-own", ""):
            with suppress(FarrankError):
                client.rerank("", long, ranker=ranker)
        with pytest.raises(FarrankError):
            client.rerank("q", ["the river and the sea " * 280] * 40, ranker="maxp", timeout_s=0.001)
        for index in ("none", "things"):
            with suppress(FarrankError):
                client.search_and_rerank("sea", index=index)
    for key in (None, "wrong"):
        with Client(server.address, api_key=key, retry=once) as client:
            for call in (client.rankers, lambda: client.rerank("q", ["x"])):
                with pytest.raises(FarrankError):
                    call()
    for body in (b"", b"{", json.dumps({"query": "q", "documents": ["x"], "model": "none"}).encode()):
        _post(f"{server.http_url}/v2/rerank", body, api_key)
        _post(f"{server.http_url}/farrank.v1.RerankService/Rerank", body, api_key)
    _post(f"{server.http_url}/v2/rerank", json.dumps({"query": "q", "documents": ["x"]}).encode(), api_key)
    _post(f"{server.http_url}/v2/rerank", b"{}", "wrong")
    _get(f"{server.http_url}/info", api_key)
    with Client(server.address, api_key=api_key, retry=once) as client:
        client.search_and_rerank("sea", index="things", ranker="both")


def _post(url: str, body: bytes, api_key: str) -> None:
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    with suppress(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(url, body, headers)).close()


def _get(url: str, api_key: str) -> None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"})
    with suppress(urllib.error.HTTPError):
        urllib.request.urlopen(request).close()
