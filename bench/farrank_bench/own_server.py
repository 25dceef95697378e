"""The sections about Farrank's own server: each measures one claim and returns its rows."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_bench.corpus_calls import encoder_inputs
from farrank_bench.offline import measure_offline
from farrank_bench.report import Row, at_least, below, spread
from farrank_bench.served import answer_all, offer, read_metrics, resident_mib, watched_memory
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_client import Client
from farrank_loadtest.workloads import Call
from farrank_rankers.reader import Reader
from farrank_runtimes.runtime import Runtime

WITHIN_S = 10.0
OVER_ALONE = 0.95
TOKENS = ("farrank_encoded_tokens_total", "farrank_padded_tokens_total")
# What a server that is offered too much may answer.
EXPECTED = ("OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")


@dataclass(frozen=True, slots=True)
class Bench:
    """What all sections share: the server under test, and the same ranker without it."""

    server: SpawnedServer
    runtime: Runtime
    reader: Reader
    calls: Sequence[Call]
    callers: int
    repeats: int


def throughput(bench: Bench) -> tuple[list[Row], float]:
    """Alternate the server and the bare runtime on the same pairs; returns the capacity in calls/s, too."""
    inputs = encoder_inputs(bench.reader, bench.calls)
    offline, online, ratios, calls_per_s = [], [], [], []
    # Once unmeasured: memory pools grow, the measured speed settles.
    answer_all(bench.server.address, bench.calls[: 2 * bench.callers], bench.callers)
    real, padded = read_metrics(bench.server.metrics_url, *TOKENS)
    for _ in range(bench.repeats):
        alone = measure_offline(bench.runtime, inputs)
        served = answer_all(bench.server.address, bench.calls, bench.callers)
        if served.pairs != len(inputs):
            raise AssertionError(f"the server ran {served.pairs} pairs of {len(inputs)}")
        offline.append(alone.pairs_per_s)
        online.append(served.pairs / served.seconds)
        calls_per_s.append(len(bench.calls) / served.seconds)
        ratios.append(online[-1] / alone.pairs_per_s)
        print(f"  offline {offline[-1]:.1f} pairs/s, server {online[-1]:.1f}: {ratios[-1]:.3f}", flush=True)
    real_after, padded_after = read_metrics(bench.server.metrics_url, *TOKENS)
    padding = (padded_after - padded) / (real_after - real)
    memory_mib = resident_mib(bench.server.process.pid)
    rows = [
        Row("pairs/s, runtime alone (sorted by length)", spread(offline, ".1f")),
        Row(f"pairs/s through the server, {bench.callers} callers", spread(online, ".1f")),
        at_least("server over runtime alone", ratios, OVER_ALONE),
        Row("padded over real tokens", f"{padding:.3f}", "at most 1.10", padding <= 1.10),
        Row("server memory after the load, MiB", f"{memory_mib:.0f}", "below 1,500", memory_mib < 1500),
    ]
    return rows, statistics.median(calls_per_s)


def idle_latency(bench: Bench, call: Call, repeats: int) -> list[Row]:
    """Send one small call at a time; what it takes beyond the time that the model takes for it."""
    inputs = encoder_inputs(bench.reader, [call])
    answer_all(bench.server.address, [call] * 10, 1)
    latencies_s: list[float] = []
    model_s: list[float] = []
    alone_s: list[float] = []
    # In turns, so that a noisy minute falls on both.
    for _ in range(10):
        served = answer_all(bench.server.address, [call] * (repeats // 10), 1)
        latencies_s += served.latencies_s
        model_s += served.model_s
        alone_s += [measure_offline(bench.runtime, inputs).seconds for _ in range(repeats // 10)]
    beyond_s = [latency - model for latency, model in zip(latencies_s, model_s, strict=True)]
    latency_ms, model_ms, beyond_ms, alone_ms = (
        statistics.median(values) * 1e3 for values in (latencies_s, model_s, beyond_s, alone_s)
    )
    return [
        Row(f"one small call ({inputs[0].tokens} tokens) through an idle server, ms", f"{latency_ms:.2f}"),
        Row("the model's time in these calls (encoder and aggregator), ms", f"{model_ms:.2f}"),
        Row("beyond the model's time, call by call, ms", f"{beyond_ms:.2f}", "at most 2.5", beyond_ms <= 2.5),
        Row("the encoder alone, again and again in a process without a server, ms", f"{alone_ms:.2f}"),
    ]


def overload(bench: Bench, capacity_per_s: float, duration_s: float, timeout_s: float) -> list[Row]:
    """Offer three times the capacity on a schedule that waits for nobody."""
    url, failures = bench.server.metrics_url, "farrank_batch_failures_total"
    (failed_before,) = read_metrics(url, failures)
    rate_per_s = 3 * capacity_per_s
    with watched_memory(bench.server.process.pid) as memory_mib:
        found = offer(bench.server.address, bench.calls, rate_per_s, duration_s, timeout_s=timeout_s, seed=3)
    settled, last = memory_mib[len(memory_mib) // 6 : len(memory_mib) // 3], memory_mib[-10:]
    in_time = found.goodput_per_s / capacity_per_s
    latency = found.latency
    other = {name: n for name, n in found.statuses.items() if name not in EXPECTED}
    (failed_after,) = read_metrics(url, failures)
    failed = failed_after - failed_before
    return [
        Row("capacity (closed loop), calls/s", f"{capacity_per_s:.2f}"),
        Row(f"offered for {duration_s:.0f} s, calls/s", f"{found.offered / duration_s:.2f}", "3 × capacity"),
        Row("the generator's own lateness, p99, ms", f"{found.lag.percentile_s(99) * 1e3:.1f}"),
        Row(f"answered within {timeout_s:.0f} s, calls/s", f"{found.goodput_per_s:.2f}"),
        Row("answered in time over capacity", f"{in_time:.3f}", "at least 0.9", in_time >= 0.9),
        Row("statuses", ", ".join(f"{name} {n}" for name, n in sorted(found.statuses.items()))),
        Row(
            "any other status, failed batches",
            f"{other or 0}, {failed:.0f}",
            "0, 0",
            not other and not failed,
        ),
        Row(
            "latency of answers from when they were due, p50 / p95 / max, s",
            f"{latency.percentile_s(50):.2f} / {latency.percentile_s(95):.2f} / {latency.max_s:.2f}",
        ),
        Row(
            "server memory, early / at the end, MiB",
            f"{statistics.median(settled):.0f} / {statistics.median(last):.0f}",
            "flat",
        ),
    ]


def start_to_healthy(artifact: Path, threads: int, starts: int) -> list[Row]:
    """Start a server again and again until its health service says SERVING.

    One has served the artifact before: its files are in the system's memory.
    """
    arguments = ["--ranker", f"bench={artifact}", "--device", "cpu", "--threads", str(threads)]
    arguments += ["--log-level", "warning"]
    took_s = []
    for _ in range(starts):
        started_s = time.perf_counter()
        with spawned_server(arguments) as server, Client(server.address) as client:
            if not client.is_healthy():
                raise AssertionError("the server called itself healthy, and its health service did not")
            took_s.append(time.perf_counter() - started_s)
        print(f"  healthy after {took_s[-1]:.1f} s", flush=True)
    return [below("start to healthy with a cached artifact, s", took_s, WITHIN_S, ".1f")]
