"""A real server of a model on the device: how long one request takes, and how busy it keeps the device."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from farrank_bench.corpus_calls import call_of
from farrank_bench.gpu.bench import Bench, Extent, seconds_of
from farrank_bench.gpu.encoding import Request, score
from farrank_bench.gpu.inputs import LONG_QUERY, full_texts
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
    # Imported here: a machine that has no client still measures what needs none.
    from farrank_bench.served import answer_all

    ranker, aim, calls = bench.model(name), AIMS[name], bench.extent.calls
    texts = full_texts(bench.corpus, ranker.reader, bench.extent.documents)
    request = Request(ranker.reader, LONG_QUERY, texts)
    with serving(bench, ranker) as server:
        call = call_of(LONG_QUERY, texts)
        answer_all(server.address, [call] * UNMEASURED, 1)
        served = answer_all(server.address, [call] * calls, 1)
    runtime, form = bench.open(ranker, "packed")
    runtime.warm_up()
    alone_s = []
    for _ in range(UNMEASURED + calls):
        bench.limit.check()
        alone_s.append(seconds_of(partial(score, runtime, request), bench.device))
    alone_ms = [seconds * 1e3 for seconds in alone_s[UNMEASURED:]]
    served_ms, model_ms = ([1e3 * each for each in times] for times in (served.latencies_s, served.model_s))
    tokens = sum(item.tokens for item in request.inputs)
    return [
        Row(
            f"{aim.name}: one request",
            f"{len(texts)} documents, {len(request.inputs)} inputs, {tokens} tokens",
        ),
        Row("runtime", form),
        Row("from text, through an idle server, ms", spread(served_ms, ".1f")),
        Row("the model's time in these calls, ms", spread(model_ms, ".1f")),
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
    from farrank_bench.served import watch_loaded

    ranker, extent = bench.model(MODEL), bench.extent
    call = call_of(LONG_QUERY, full_texts(bench.corpus, ranker.reader, extent.documents))
    shares, speeds = [], []
    with serving(bench, ranker) as server:
        for _ in range(extent.repeats):
            bench.limit.check()
            before, after = watch_loaded(
                server.address,
                call,
                extent.callers,
                extent.settling_s + extent.load_s,
                partial(_watch, server.metrics_url, extent),
            )
            seconds = after.at_s - before.at_s
            shares.append((after.busy_s - before.busy_s) / seconds)
            speeds.append((after.chunks - before.chunks) / seconds)
    return [
        Row("load", f"FirstP from text, {extent.callers} callers of {extent.documents} full documents"),
        at_least("device busy seconds over seconds", shares, LEAST_BUSY, ".3f"),
        Row("pairs/s through the server", spread(speeds, ".1f")),
    ]


async def _watch(url: str, extent: Extent) -> tuple[Counted, Counted]:
    await asyncio.sleep(extent.settling_s)
    before = await asyncio.to_thread(_count, url)
    await asyncio.sleep(extent.load_s)
    return before, await asyncio.to_thread(_count, url)


def _count(url: str) -> Counted:
    """Read a server's counters."""
    from farrank_bench.served import read_metrics

    busy_s, chunks = read_metrics(url, BUSY, CHUNKS)
    return Counted(time.perf_counter(), busy_s, chunks)
