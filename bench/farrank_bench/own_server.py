"""The sections about Farrank's own server. Each measures one claim and returns its rows."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_bench import served as load
from farrank_bench.corpus_calls import call_of, encoder_inputs, make_calls
from farrank_bench.offline import Request, RuntimeAlone, longest_first, score
from farrank_bench.report import Row, below
from farrank_bench.rounds import ContenderFailed, PassResult, measure_rounds, whole
from farrank_cli.spawn import SpawnedServer
from farrank_client import Client
from farrank_loadtest.workloads import Call
from farrank_local.reranker import Reranker
from farrank_rankers.files.open import Overrides
from farrank_rankers.reader import Reader
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Placement, Runtime
from farrank_server.config.schema import DepthConfig

WITHIN_S = 10.0
OVER_ALONE = 0.95
SMALL_CALLS, SMALL_CHARACTERS = 200, 200
TOKENS = ("farrank_encoded_tokens_total", "farrank_padded_tokens_total")
FAILURES = "farrank_batch_failures_total"
# The statuses that an overloaded server may answer with.
EXPECTED = ("OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")


@dataclass(slots=True)
class OwnServer:
    """The state of all sections: the server under test, and the folder and the runtime of the same ranker.

    `throughput` sets `capacity_per_s`, in calls.
    """

    server: SpawnedServer
    folder: Path
    runtime: Runtime
    reader: Reader
    calls: Sequence[Call]
    callers: int
    repeats: int
    capacity_per_s: float | None = None

    def throughput(self) -> list[Row]:
        """Let the server, a reranker in this process and the runtime alone take turns on the same pairs.

        The runtime alone gets pairs that were read before, all of them sorted by length, and has no document
        to score: it does less than a server. A loop over a runtime reads the texts itself, in their order.
        """
        inputs = encoder_inputs(self.reader, self.calls)
        alone, loop, served, local = "runtime alone", "loop over the runtime", "server", "in process"

        def score_served() -> PassResult:
            scored = load.score_served(self.server.address, "", self.callers, self.calls)
            if scored.count != len(inputs):
                raise ContenderFailed(f"the server ran {scored.count} pairs of {len(inputs)}")
            return scored

        def score_in_order() -> PassResult:
            began_s = time.perf_counter()
            for call in self.calls:
                score(self.runtime, Request(self.reader, call.query, call.texts))
            return PassResult(time.perf_counter() - began_s, len(inputs))

        reranker = Reranker(str(self.folder), runtime="torch", precision="fp32", depth=DepthConfig("all"))

        def score_here() -> PassResult:
            began_s = time.perf_counter()
            rankings = list(reranker.rank_all((call.query, call.texts) for call in self.calls))
            pairs = sum(ranking.usage.chunks for ranking in rankings)
            return PassResult(time.perf_counter() - began_s, pairs)

        before = load.read_metrics(self.server.metrics_url, *TOKENS)
        contenders = {
            alone: RuntimeAlone(self.runtime, longest_first(inputs)).score,
            loop: score_in_order,
            served: score_served,
            local: score_here,
        }
        with reranker:
            found = measure_rounds(contenders, self.repeats)
        speeds = [
            found.speed_row(alone, "pairs/s, runtime alone (sorted by length)"),
            found.speed_row(served, f"pairs/s through the server, {self.callers} callers"),
            found.ratio_row(served, alone, "server over runtime alone", OVER_ALONE),
            found.speed_row(local, "pairs/s in this process (farrank.Reranker)"),
            found.ratio_row(local, alone, "in process over runtime alone", OVER_ALONE),
            found.speed_row(loop, "pairs/s, a loop that reads and scores the same calls"),
            found.ratio_row(local, loop, "in process over the loop", 1.0),
        ]
        whole(speeds, found)
        after = load.read_metrics(self.server.metrics_url, *TOKENS)
        real, padded = (late - early for late, early in zip(after, before, strict=True))
        padding = padded / real
        memory_mib = load.resident_mib(self.server.process.pid)
        self.capacity_per_s = statistics.median(found.speeds[served]) * len(self.calls) / len(inputs)
        return [
            *speeds,
            Row("padded over real tokens", f"{padding:.3f}", "at most 1.10", padding <= 1.10),
            Row("server memory after the load, MiB", f"{memory_mib:.0f}", "below 1,500", memory_mib < 1500),
        ]

    def idle_latency(self) -> list[Row]:
        """Send one small call at a time. Report its latency, and the part of it outside the model.

        Three senders take turns, so that noise of the machine affects all: Farrank's client, which waits in a
        thread; the load generator, whose event loop takes time of its own; and the encoder alone.
        """
        call = call_of(self.calls[0].query, [self.calls[0].texts[0][:SMALL_CHARACTERS]])
        inputs = encoder_inputs(self.reader, [call])
        alone = RuntimeAlone(self.runtime, inputs)
        load.answer_all(self.server.address, [call] * 10, 1)
        asked_s, generated_s, alone_s = [], [], []
        in_a_row = SMALL_CALLS // 10
        with Client(self.server.address) as client:
            for _ in range(10):
                asked_s += [_asked(client, call) for _ in range(in_a_row)]
                samples = load.answer_all(self.server.address, [call] * in_a_row, 1)[1]
                generated_s += [sample.latency_s - load.model_s(sample) for sample in samples]
                alone_s += [alone.score().seconds for _ in range(in_a_row)]
        latency_ms, model_ms, beyond_ms = (
            1e3 * statistics.median(times) for times in zip(*asked_s, strict=True)
        )
        generated_ms, alone_ms = (1e3 * statistics.median(times) for times in (generated_s, alone_s))
        beyond, tokens = "beyond the model's time, call by call, ms", inputs[0].tokens
        return [
            Row(f"one small call ({tokens} tokens) through an idle server, ms", f"{latency_ms:.2f}"),
            Row("the model's time in these calls (encoder and aggregator), ms", f"{model_ms:.2f}"),
            Row(beyond, f"{beyond_ms:.2f}", "at most 2.5", beyond_ms <= 2.5),
            Row("the same for the load generator's calls, with its own time, ms", f"{generated_ms:.2f}"),
            Row("the encoder alone, repeatedly in a process without a server, ms", f"{alone_ms:.2f}"),
        ]

    def overload(self, duration_s: float) -> list[Row]:
        """Offer three times the capacity on a schedule that does not wait for answers."""
        if self.capacity_per_s is None:
            raise ContenderFailed("the throughput was not measured, which gives the capacity")
        url, capacity_per_s = self.server.metrics_url, self.capacity_per_s
        (failed_before,) = load.read_metrics(url, FAILURES)
        with load.watched_memory(self.server.process.pid) as memory_mib:
            (step,) = load.offer(self.server.address, self.calls, [3 * capacity_per_s], duration_s)
        found, latency = step.whole, step.whole.latency
        settled, last = memory_mib[len(memory_mib) // 6 : len(memory_mib) // 3], memory_mib[-10:]
        in_time = found.goodput_per_s / capacity_per_s
        other = {name: n for name, n in found.statuses.items() if name not in EXPECTED}
        failed = load.read_metrics(url, FAILURES)[0] - failed_before
        memory = f"{statistics.median(settled):.0f} / {statistics.median(last):.0f}"
        offered, counts = f"offered for {duration_s:.0f} s, calls/s", f"{other or 0}, {failed:.0f}"
        slow = f"{latency.percentile_s(50):.2f} / {latency.percentile_s(95):.2f} / {latency.max_s:.2f}"
        return [
            Row("capacity (closed loop), calls/s", f"{capacity_per_s:.2f}"),
            Row(offered, f"{found.offered / duration_s:.2f}", "3 × capacity"),
            Row("the generator's own lateness, p99, ms", f"{found.lag.percentile_s(99) * 1e3:.1f}"),
            Row(f"answered within {load.OFFERED_TIMEOUT_S:.0f} s, calls/s", f"{found.goodput_per_s:.2f}"),
            Row("answered in time over capacity", f"{in_time:.3f}", "at least 0.9", in_time >= 0.9),
            Row("statuses", ", ".join(f"{name} {n}" for name, n in sorted(found.statuses.items()))),
            Row("any other status, failed batches", counts, "0, 0", not other and not failed),
            Row("latency of answers from when they were due, p50 / p95 / max, s", slow),
            Row("server memory, early / at the end, MiB", memory, "flat"),
        ]


def _asked(client: Client, call: Call) -> tuple[float, float, float]:
    """Send a call. Returns its seconds in total, in the model, and outside the model."""
    started_s = time.perf_counter()
    timings = client.rerank(call.query, call.texts).timings
    latency_s = time.perf_counter() - started_s
    model_s = (timings.inference_ns + timings.aggregation_ns) / 1e9
    return latency_s, model_s, latency_s - model_s


def idle_latency_of(artifact: Path, threads: int) -> list[Row]:
    """Measure the idle latency of an artifact's server with its fastest export."""
    placement = Placement("cpu", threads)
    alone = open_ranker_runtime(str(artifact), Overrides(), placement=placement)
    calls = make_calls(alone.reader, 1, 1, seed=1, pairs=True)
    with load.serving(artifact, "--device", "cpu", "--threads", str(threads)) as server:
        with Client(server.address) as client:
            served = client.rankers().rankers[0]
        runs = alone.runtime.capabilities()
        if (runs.runtime, runs.precision) != (served.runtime, served.precision):
            raise AssertionError(f"the server runs {served.runtime} {served.precision}, and alone {runs}")
        return OwnServer(server, artifact, alone.runtime, alone.reader, calls, 1, 1).idle_latency()


def start_to_healthy(artifact: Path, threads: int, starts: int) -> list[Row]:
    """Start a server repeatedly, each time until its health service answers SERVING.

    Another server has served the artifact before, so its files are in the page cache.
    """
    took_s = []
    for _ in range(starts):
        started_s = time.perf_counter()
        device = ("--device", "cpu", "--threads", str(threads))
        with load.serving(artifact, *device) as server, Client(server.address) as client:
            if not client.is_healthy():
                raise AssertionError("the server reported to be healthy, but its health service did not")
            took_s.append(time.perf_counter() - started_s)
        print(f"  healthy after {took_s[-1]:.1f} s", flush=True)
    return [below("start to healthy with a cached artifact, s", took_s, WITHIN_S, ".1f")]
