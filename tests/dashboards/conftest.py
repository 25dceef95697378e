"""A real Prometheus that scrapes a real server under load, with Farrank's configuration and rules."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from farrank_calls.key_file import add_key
from farrank_cli.main import main
from farrank_cli.spawn import SpawnedServer, spawned_server
from support.prometheus import (
    COLLECTION,
    LIMITS,
    NAMESPACE,
    RULES,
    SCRAPE_INTERVAL,
    Prometheus,
    load,
    scrapes,
    started,
    tool,
    wait_until,
)


@pytest.fixture(scope="session")
def promtool() -> Callable[..., None]:
    """Run promtool in the rules' folder. It must report no problem."""
    program = tool("promtool")

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [program, *arguments], cwd=RULES, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def prometheus_program() -> str:
    """Requested before a server, because a test without the program needs none."""
    return tool("prometheus")


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dashboards-keys") / "keys.toml"


@pytest.fixture(scope="session")
def api_key(key_file: Path) -> str:
    return add_key(key_file, "load", {"calls_per_s": 1e6, "expires": "2999-01-31"})


@pytest.fixture(scope="session")
def admin_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def server(
    tiny_rankers: dict[str, Path],
    key_file: Path,
    api_key: str,
    admin_port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SpawnedServer]:
    folder = tmp_path_factory.mktemp("dashboards-index")
    lines = [json.dumps({"id": doc_id, "text": text}) for doc_id, text in COLLECTION.items()]
    (folder / "collection.jsonl").write_text("\n".join(lines))
    assert main(["index", str(folder / "collection.jsonl"), "--out", str(folder / "index")]) == 0
    arguments = [f"--ranker={name}={tiny_rankers[name]}" for name in ("maxp", "biencoder")]
    arguments += [
        f"--index=things={folder / 'index'}",
        "--http-port=0",
        "--log-level=warning",
        f"--keys={key_file}",
        f"--set=listen.admin.port={admin_port}",
    ]
    arguments += [f"--set=limits.{name}={value}" for name, value in LIMITS.items()]
    arguments += ["--set=rankers.maxp.depth.mode=all", "--set=rankers.maxp.max_document_tokens=1431"]
    with spawned_server(arguments) as spawned:
        yield spawned


@pytest.fixture(scope="session")
def prometheus(
    prometheus_program: str,
    server: SpawnedServer,
    api_key: str,
    admin_port: int,
    tiny_rankers: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """Prometheus after a load of calls that were answered, refused, late and cancelled, beside a canary."""
    folder = tmp_path_factory.mktemp("prometheus")
    recorded = folder / "recorded.jsonl"
    recorded.write_text(json.dumps({"query": "sea", "documents": [*COLLECTION.values()][:4]}))
    trial = [f"--recorded={recorded}", "--min-tau=-1", "--max-latency-ratio=1000"]
    canary = ["rankers", "canary", "maxp", str(tiny_rankers["firstp"]), "--share=0", *trial]
    assert main([*canary, f"--admin=localhost:{admin_port}"]) == 0
    config = yaml.safe_load((RULES / "prometheus.yaml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": SCRAPE_INTERVAL}
    (job,) = config["scrape_configs"]
    target = urllib.parse.urlsplit(server.metrics_url).netloc
    job["static_configs"] = [{"targets": [target], "labels": {"namespace": NAMESPACE}}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    shutil.copytree(RULES / "rules", folder / "rules")
    with started(prometheus_program, folder) as url:
        wait_until(lambda: scrapes(url) >= 2)
        began_s = time.time()
        asyncio.run(load(server, api_key))
        seen = scrapes(url)
        wait_until(lambda: scrapes(url) >= seen + 2)
        yield Prometheus(url, began_s, time.time())
