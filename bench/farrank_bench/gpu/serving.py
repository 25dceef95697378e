"""A real server of a model on the device: how long one request takes, and how busy it keeps the device."""

import asyncio
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from farrank_bench.calls import BenchCall
from farrank_bench.gpu.bench import Bench, Extent, seconds_of
from farrank_bench.gpu.encoding import Request, score
from farrank_bench.gpu.texts import LONG_QUERY, full_texts
from farrank_bench.report import Row, at_least, below, spread
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker
from farrank_runtimes.devices import usable_cores

NAME = "bench"


@contextmanager
def serving(bench: Bench, ranker: Ranker) -> Iterator[SpawnedServer]:
    """Serve a model as `bench.open` would, packed and in bf16, and keep nothing between calls.

    Half the cores read texts: a device that is fed from text is no faster than they are.
    """
    settings = {
        f"rankers.{NAME}.packing": "packed",
        f"rankers.{NAME}.runtime": "torch",
        f"rankers.{NAME}.precision": "bf16",
        "tokenizer_threads": max(2, usable_cores() // 2),
        "cache_bytes": 0,
        "limits.default_timeout_s": 600,
    }
    with TemporaryDirectory() as folder:
        save_ranker(ranker, Path(folder))
        arguments = ["--ranker", f"{NAME}={folder}", "--device", str(bench.device), "--log-level", "warning"]
        for key, value in settings.items():
            arguments += ["--set", f"{key}={value}"]
        with spawned_server(arguments) as server:
            yield server


# What comes first makes memory pools and compiled kernels.
UNMEASURED = 3


@dataclass(frozen=True, slots=True)
class Aim:
    """A model's name, and what its request may take, tokenized in advance."""

    name: str
    tokenized_ms: float


AIMS: Mapping[str, Aim] = {
    "firstp-bert": Aim("FirstP", 25.0),
    "parade-attn-bert": Aim("PARADE Attn", 65.0),
}


def latency_of(name: str, bench: Bench) -> list[Row]:
    """Send a request of full documents again and again, then score it without a server."""
    # A machine that has no client still measures what needs none.
    from farrank_bench.online import run_one_by_one

    ranker, aim, calls = bench.model(name), AIMS[name], bench.extent.calls
    texts = full_texts(bench.corpus, ranker.reader, bench.extent.documents)
    request = Request(ranker.reader, LONG_QUERY, texts)
    with serving(bench, ranker) as server:
        call = BenchCall(LONG_QUERY, texts)
        run_one_by_one(server.address, call, UNMEASURED)
        served = run_one_by_one(server.address, call, calls)
    runtime, form = bench.open(ranker, "packed")
    runtime.warm_up()
    alone_s = [seconds_of(partial(score, runtime, request), bench.device) for _ in range(UNMEASURED + calls)]
    alone_ms = [seconds * 1e3 for seconds in alone_s[UNMEASURED:]]
    tokens = sum(item.tokens for item in request.inputs)
    return [
        Row(
            f"{aim.name}: one request",
            f"{len(texts)} documents, {len(request.inputs)} inputs, {tokens} tokens",
        ),
        Row("runtime", form),
        Row("from text, through an idle server, ms", spread([seconds * 1e3 for seconds, _ in served], ".1f")),
        Row("the model's time in these calls, ms", spread([model * 1e3 for _, model in served], ".1f")),
        below("tokenized in advance, the runtime alone, ms", alone_ms, aim.tokenized_ms, ".1f"),
    ]


LATENCIES = {name: partial(latency_of, name) for name in AIMS}


MODEL = "firstp-bert"
BUSY, CHUNKS = "farrank_device_busy_seconds_total", "farrank_encoded_chunks_total"
LEAST_BUSY = 0.95


@dataclass(frozen=True, slots=True)
class Counted:
    """What a server had counted at a time, in seconds of one clock."""

    at_s: float
    busy_s: float
    chunks: float


def saturation(bench: Bench) -> list[Row]:
    """Let callers ask without a pause, and watch the server in the middle of it."""
    ranker, extent = bench.model(MODEL), bench.extent
    texts = full_texts(bench.corpus, ranker.reader, extent.documents)
    shares, speeds = [], []
    with serving(bench, ranker) as server:
        for _ in range(extent.repeats):
            before, after = asyncio.run(_loaded(server, texts, extent))
            seconds = after.at_s - before.at_s
            shares.append((after.busy_s - before.busy_s) / seconds)
            speeds.append((after.chunks - before.chunks) / seconds)
    return [
        Row("load", f"FirstP from text, {extent.callers} callers of {extent.documents} full documents"),
        at_least("device busy seconds over seconds", shares, LEAST_BUSY, ".3f"),
        Row("pairs/s through the server", spread(speeds, ".1f")),
    ]


async def _loaded(server: SpawnedServer, texts: Sequence[str], extent: Extent) -> tuple[Counted, Counted]:
    """Load a server; give what it had counted at two times under load."""
    # A machine that has no client still measures what needs none.
    from farrank_bench.online import CALL_TIMEOUT_S, NO_RETRY
    from farrank_client import AsyncClient

    async with AsyncClient(server.address, retry=NO_RETRY) as client, asyncio.TaskGroup() as group:

        async def ask() -> None:
            await client.rerank(LONG_QUERY, texts, timeout_s=CALL_TIMEOUT_S)

        async def ask_on() -> None:
            while True:
                await ask()

        # Once before: counters are there from a server's first batch on.
        await ask()
        callers = [group.create_task(ask_on()) for _ in range(extent.callers)]
        await asyncio.sleep(extent.settling_s)
        before = await asyncio.to_thread(_count, server.metrics_url)
        await asyncio.sleep(extent.load_s)
        after = await asyncio.to_thread(_count, server.metrics_url)
        for caller in callers:
            caller.cancel()
    return before, after


def _count(url: str) -> Counted:
    """Read a server's counters."""
    with urllib.request.urlopen(url) as page:
        lines = page.read().decode().splitlines()
    now_s = time.perf_counter()
    return Counted(now_s, *(_summed(lines, name) for name in (BUSY, CHUNKS)))


def _summed(lines: Sequence[str], name: str) -> float:
    """Sum a metric's samples over all labels, in Prometheus's text format.

    Raises: ValueError if there is none.
    """
    found = [line.rpartition(" ")[2] for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    if not found:
        raise ValueError(f"the server's metrics have no {name}")
    return sum(map(float, found))
