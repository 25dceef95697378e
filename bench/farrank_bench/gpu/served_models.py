"""A real server of a model on the device: a request's latency, and the share of time the device is busy."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from farrank_bench.corpus_calls import call_of
from farrank_bench.gpu.bench import DeviceBench
from farrank_bench.gpu.inputs import LONG_QUERY, full_texts
from farrank_bench.offline import Request, score
from farrank_bench.report import Row, at_least, below, spread
from farrank_cli.spawn import SpawnedServer
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker
from farrank_runtimes.cores import usable_cores

# The first calls create memory pools and compile kernels.
UNMEASURED = 3
# The aims for a request that is tokenized in advance.
MODELS = {"FirstP": "firstp-bert", "PARADE Attn": "parade-attn-bert"}
AIMS_MS: Mapping[str, float] = {"FirstP": 25.0, "PARADE Attn": 65.0}

BUSY, CHUNKS = "farrank_device_busy_seconds_total", "farrank_encoded_chunks_total"
MIN_BUSY = 0.95


@contextmanager
def serving_packed(bench: DeviceBench, ranker: Ranker) -> Iterator[SpawnedServer]:
    """Serve a model as `bench.open` opens it, packed and in bf16, without a cache.

    Half the cores tokenize: a device that is fed from texts is no faster than the tokenizers.
    """
    # Imported here, as below, so that a machine without the client can still run the other sections.
    from farrank_bench.served import serving

    settings = {
        "rankers.bench.packing": "packed",
        "rankers.bench.runtime": "torch",
        "rankers.bench.precision": "bf16",
        "tokenizer_threads": max(2, usable_cores() // 2),
        "cache_bytes": 0,
        "limits.default_timeout_s": 600,
    }
    with TemporaryDirectory() as folder:
        save_ranker(ranker, Path(folder))
        with serving(Path(folder), "--device", str(bench.device), **settings) as server:
            yield server


def latency_of(name: str, bench: DeviceBench) -> list[Row]:
    """Send a request of full documents repeatedly, then score it without a server."""
    from farrank_bench.served import answer_all, model_s

    ranker, calls = bench.model(MODELS[name]), bench.extent.calls
    texts = full_texts(bench.corpus, ranker.reader, bench.extent.documents)
    request = Request(ranker.reader, LONG_QUERY, texts)
    with serving_packed(bench, ranker) as server:
        call = call_of(LONG_QUERY, texts)
        answer_all(server.address, [call] * UNMEASURED, 1)
        _, samples, _ = answer_all(server.address, [call] * calls, 1)
    runtime, form = bench.open(ranker, "packed")
    runtime.warm_up()
    alone_ms = []
    for _ in range(UNMEASURED + calls):
        bench.check_time()
        alone_ms.append(1e3 * bench.seconds_of(partial(score, runtime, request)))
    inputs = request.inputs
    size = f"{len(texts)} documents, {len(inputs)} inputs, {sum(item.tokens for item in inputs)} tokens"
    alone = "tokenized in advance, the runtime alone, ms"
    return [
        Row(f"{name}: one request", size),
        Row("runtime", form),
        Row(
            "from text, through an idle server, ms", spread([1e3 * each.latency_s for each in samples], ".1f")
        ),
        Row("the model's time in these calls, ms", spread([1e3 * model_s(each) for each in samples], ".1f")),
        below(alone, alone_ms[UNMEASURED:], AIMS_MS[name], ".1f"),
    ]


def saturation(bench: DeviceBench) -> list[Row]:
    """Let callers send calls without pause, and watch the server meanwhile."""
    from farrank_bench.served import answer_all, check, read_metrics, watch_loaded

    ranker, extent = bench.model(MODELS["FirstP"]), bench.extent
    call = call_of(LONG_QUERY, full_texts(bench.corpus, ranker.reader, extent.documents))
    shares, speeds = [], []
    with serving_packed(bench, ranker) as server:

        async def count() -> tuple[float, list[float]]:
            found = await asyncio.to_thread(read_metrics, server.metrics_url, BUSY, CHUNKS)
            return time.perf_counter(), found

        async def watch() -> None:
            await asyncio.sleep(extent.settling_s)
            started_s, (busy_before_s, chunks_before) = await count()
            await asyncio.sleep(extent.load_s)
            ended_s, (busy_s, chunks) = await count()
            shares.append((busy_s - busy_before_s) / (ended_s - started_s))
            speeds.append((chunks - chunks_before) / (ended_s - started_s))

        for _ in range(extent.repeats):
            bench.check_time()
            answer_all(server.address, [call], 1)
            _, samples = watch_loaded(server.address, [call], extent.callers, watch)
            check(samples)
    return [
        Row("load", f"FirstP from text, {extent.callers} callers of {extent.documents} full documents"),
        at_least("device busy seconds over seconds", shares, MIN_BUSY),
        Row("pairs/s through the server", spread(speeds, ".1f")),
    ]
