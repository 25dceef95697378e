"""A real Prometheus, queries to it, and a load of calls with every outcome for it to scrape."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from farrank_cli.spawn import SpawnedServer
from farrank_client import AsyncClient, FarrankError, RetryPolicy

RULES = Path(__file__).parents[2] / "dashboards" / "prometheus"
# The label that Kubernetes' Prometheus would add.
NAMESPACE = "search"
# This is also the longest time of a scrape.
SCRAPE_INTERVAL = "1s"
LOAD_S = 10.0
# On a busy machine few rounds fit in, and a counter that is never seen to grow has no rate.
MIN_ROUNDS = 6

# 2,000 tokens: several chunks, and more than a ranker reads.
LONG = "the river rises in the mountains and meets the sea " * 200
COLLECTION = {"rivers": LONG, "ships": "a ship sails over the sea " * 100, "bread": "flour and water " * 100}
# Two of the large calls below fit in, but not a third.
LIMITS = {"max_queued_tokens": 150_000}


def tool(name: str) -> str:
    """Find a program of Prometheus' package, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install prometheus)")
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A client of a running Prometheus. The load ran from `began_s` to `ended_s`."""

    url: str
    began_s: float = 0.0
    ended_s: float = 0.0

    def ask(self, path: str, **parameters: str | float) -> Any:
        """Return the `data` of an answer of the HTTP API."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=120) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        assert body["status"] == "success"
        return body["data"]

    def series(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of series that had a finite value while the load ran."""
        answer = self.ask("query_range", query=expression, start=self.began_s, end=self.ended_s, step=1)
        return [
            series["metric"]
            for series in answer["result"]
            if any(math.isfinite(float(value)) for _, value in series["values"])
        ]

    def largest(self, expression: str) -> float:
        """Return the largest value of any series while the load ran."""
        answer = self.ask("query_range", query=expression, start=self.began_s, end=self.ended_s, step=1)
        return max(
            (float(value) for series in answer["result"] for _, value in series["values"]), default=0.0
        )


@contextlib.contextmanager
def started(program: str, folder: Path) -> Iterator[str]:
    """Run a Prometheus on loopback with its data in `folder`, until the block is left."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
    ]
    log = folder / "log"
    with (
        log.open("w") as lines,
        subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=lines) as process,
    ):
        try:
            wait_until(lambda: process.poll() is not None or ready(f"http://{address}/-/ready"))
            assert process.poll() is None, log.read_text()
            yield f"http://{address}"
        finally:
            process.terminate()


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def scrapes(url: str) -> float:
    """Return the number of scrapes of the server."""
    answer = Prometheus(url).ask("query", query='sum(count_over_time(up{job="farrank"}[1h]))')
    return float(answer["result"][0]["value"][1]) if answer["result"] else 0.0


def wait_until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < ends_s, "it never came about"
        time.sleep(0.1)


async def load(server: SpawnedServer, api_key: str) -> None:
    """Send rounds of calls of every outcome, long enough for rates over several scrapes."""
    ends_s, rounds = time.monotonic() + LOAD_S, 0
    async with AsyncClient(server.address, api_key=api_key, retry=RetryPolicy(max_attempts=1)) as client:
        while time.monotonic() < ends_s or rounds < MIN_ROUNDS:
            rounds += 1
            outcomes = await asyncio.gather(*calls(client), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, Exception) and not isinstance(outcome, FarrankError):
                    raise outcome
            await late_call(client, server.process)


async def late_call(client: AsyncClient, server: subprocess.Popen[str]) -> None:
    """Call an idle server, which admits the call, and stop it until the deadline has passed."""
    began_s = time.monotonic()
    await client.rerank("sea", [LONG] * 10, ranker="maxp")
    took_s = time.monotonic() - began_s
    late = asyncio.create_task(client.rerank("sea", [LONG] * 10, ranker="maxp", timeout_s=3 * took_s))
    await asyncio.sleep(took_s / 2)
    server.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(3 * took_s)
    finally:
        server.send_signal(signal.SIGCONT)
    with contextlib.suppress(FarrankError):
        await late


def calls(client: AsyncClient) -> list[asyncio.Task[Any]]:
    """Send one round of calls at once: answered, together too large, wrong, and cancelled."""
    given_up = asyncio.create_task(client.rerank("sea", [LONG] * 20, ranker="maxp"))
    asyncio.get_running_loop().call_later(0.02, given_up.cancel)
    start = asyncio.create_task
    return [
        given_up,
        start(client.rankers()),
        start(client.rerank("a river " * 100, [LONG, *COLLECTION.values()], ranker="maxp")),
        start(client.rerank("a river", [LONG] * 2, ranker="maxp", depth="adaptive")),
        start(client.rerank("a river", [*COLLECTION.values()], ranker="biencoder")),
        start(client.search_and_rerank("sea", index="things", ranker="maxp")),
        start(client.search_and_rerank("sea", index="things", ranker="biencoder")),
        *(start(client.rerank("sea", [LONG] * 40, ranker="maxp")) for _ in range(4)),
        # Enough that alerts on shares of calls count them.
        *(start(client.rerank("", ["x"])) for _ in range(10)),
        start(client.rerank("q", ["x"], ranker="nobody")),
    ]
