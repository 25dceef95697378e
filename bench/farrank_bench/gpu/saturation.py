"""How much of the time a loaded server's device is busy, by the server's own count."""

import asyncio
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass

from farrank_bench.gpu.bench import Bench
from farrank_bench.gpu.extent import Extent
from farrank_bench.gpu.served import serving
from farrank_bench.gpu.texts import LONG_QUERY, full_texts
from farrank_bench.rows import Row, at_least, spread
from farrank_cli.spawn import SpawnedServer

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
