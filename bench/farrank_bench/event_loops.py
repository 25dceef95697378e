"""The cost of calls on an event loop: admission, the longest time that the loop is blocked, and sending.

The server's loop is watched in its own process. The load generator sends to a server that does nothing.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

from farrank.v1 import rerank_pb2
from farrank_bench.report import Row, below, spread
from farrank_bench.rounds import child
from farrank_bench.served import RANKER, offer, watch_loaded
from farrank_loadtest.latency.recorder import duration_text
from farrank_loadtest.loops import Sample
from farrank_loadtest.workloads import Workload
from farrank_loadtest.workloads.synthetic import make_up, parse_lengths
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_server.config.schema import HttpConfig, LimitsConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.engine.admission.estimates import Speed, Speeds
from farrank_server.engine.admission.reservations import Claim, Reservations, Work
from farrank_server.replica import Replica
from farrank_server.run import SWITCH_INTERVAL_S

IN_FLIGHT = (100, 1000, 10_000)
ADMISSIONS = 30
TOKENS_PER_S = 5000.0
CALL_TOKENS = 500

CALLERS = 1000
IDLE_S = 2.0
BEAT_S = 0.001
STALL_BELOW_MS = 10.0
# Small calls, so that many pass through the loop in a short time.
WORKLOAD = make_up(200, 2, parse_lengths("constant:30"), 6, seed=1)
# Long texts as JSON. FirstP reads only their beginning, so the size of the body is what counts.
JSON_CALLERS = 4
JSON_WORKLOAD = make_up(8, 10, parse_lengths("constant:25000"), 6, seed=1)


def admission_cost() -> list[Row]:
    """Admit and release one more call with many in flight, without a server, a model or a wait."""
    return [
        Row(f"one admission with {in_flight:,} calls in flight, ms", spread(admissions_ms(in_flight), ".3f"))
        for in_flight in IN_FLIGHT
    ]


def admissions_ms(in_flight: int) -> list[float]:
    """Time admissions one by one. Deadlines are far away and in random order."""
    randomly = random.Random(1)
    limits = LimitsConfig(max_queued_tokens=2 * in_flight * CALL_TOKENS)
    reservations = Reservations(limits, {RANKER: Speeds.measured(TOKENS_PER_S)}, Speed(1e6))

    def claim() -> Claim:
        return Claim([Work(RANKER, CALL_TOKENS)], 2000, 2000, 0.0, randomly.uniform(1e6, 2e6))

    for _ in range(in_flight):
        reservations.admit(claim(), 0.0)
    took_ms = []
    for _ in range(ADMISSIONS):
        one_more = claim()
        started_s = time.perf_counter()
        reservation = reservations.admit(one_more, 0.0)
        took_ms.append((time.perf_counter() - started_s) * 1e3)
        reservations.release(reservation)
    return took_ms


@dataclass(frozen=True, slots=True)
class LoopDelays:
    """The delays of the loop: of the latest beat, of the 99.9th percentile, and the loop's own longest work.

    Other threads and processes can delay a beat, too. The loop's own work is its thread's processor time
    between two beats.
    """

    latest_ms: float
    p999_ms: float
    longest_work_ms: float


def event_loop_stall(folder: Path, load_s: float) -> list[Row]:
    """Keep a thousand calls in flight, let all callers cancel at once, then send large bodies over HTTP."""
    save_ranker(new_ranker("firstp", "embedded", seed=1), folder)
    with child("the watched server", serve_watched, str(folder)) as server:
        address, http_url = server.ask()
        server.ask()
        time.sleep(IDLE_S)
        idle: LoopDelays = server.ask()

        async def watch() -> LoopDelays:
            await asyncio.sleep(load_s)
            held: LoopDelays = await asyncio.to_thread(server.ask)
            return held

        busy, samples = watch_loaded(address, WORKLOAD.calls, CALLERS, watch)
        hung_up: LoopDelays = server.ask()
        read, json_samples = watch_loaded(f"cohere:{http_url}", JSON_WORKLOAD.calls, JSON_CALLERS, watch)
    json_mb = sum(len(text) for text in JSON_WORKLOAD.calls[0].texts) / 1e6
    rows = [
        _statuses_row(CALLERS, WORKLOAD, load_s, samples),
        _statuses_row(JSON_CALLERS, JSON_WORKLOAD, load_s, json_samples),
    ]
    for when, found in (
        ("with nothing in flight", idle),
        (f"with {CALLERS:,} calls in flight", busy),
        (f"when {CALLERS:,} callers hang up", hung_up),
        (f"with JSON bodies of {json_mb:.1f} MB", read),
    ):
        rows += [
            below(f"the loop's longest own work, {when}, ms", [found.longest_work_ms], STALL_BELOW_MS, ".1f"),
            Row(f"its latest beat (p99.9), {when}, ms", f"{found.latest_ms:.1f} ({found.p999_ms:.1f})"),
        ]
    return rows


def _statuses_row(callers: int, workload: Workload, load_s: float, samples: Sequence[Sample]) -> Row:
    statuses = Counter(sample.status for sample in samples)
    counts = ", ".join(f"{status} {count:,}" for status, count in statuses.most_common())
    documents = len(workload.calls[0].documents)
    return Row(f"{callers:,} callers of {documents} documents for {load_s:g} s", counts)


class Heartbeat:
    """Runs a callback each millisecond on the running loop, and records how late each one was."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late_s: list[float] = []
        self._longest_work_s = 0.0
        self._schedule()

    def held(self) -> LoopDelays:
        """Return the delays since the last call of this method."""
        late_ms = sorted(1e3 * late_s for late_s in self._late_s) or [0.0]
        found = LoopDelays(late_ms[-1], late_ms[int(0.999 * (len(late_ms) - 1))], 1e3 * self._longest_work_s)
        self._late_s, self._longest_work_s = [], 0.0
        return found

    def _schedule(self) -> None:
        self._due_s, self._worked_s = time.perf_counter() + BEAT_S, time.thread_time()
        self._loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        self._late_s.append(time.perf_counter() - self._due_s)
        self._longest_work_s = max(self._longest_work_s, time.thread_time() - self._worked_s)
        self._schedule()


def serve_watched(asked: Connection, folder: str) -> None:
    """Serve the ranker. Answer the first question with both endpoints' addresses, others with the delays."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    limits = LimitsConfig(max_concurrent_calls=2 * CALLERS)
    listen = ListenConfig(port=0, metrics_port=None, http=HttpConfig(port=0))
    config = ServerConfig(rankers={RANKER: RankerConfig(folder)}, listen=listen, limits=limits)

    async def serve() -> None:
        async with Replica(config) as replica:
            heartbeat = Heartbeat()
            asked.recv()
            asked.send((replica.address, replica.http_url))
            while True:
                await asyncio.to_thread(asked.recv)
                asked.send(heartbeat.held())

    asyncio.run(serve())


RATES_PER_S = (500.0, 1000.0, 2000.0, 3000.0, 4000.0)
GENERATED_DOCUMENTS = 4
GENERATED = make_up(200, GENERATED_DOCUMENTS, parse_lengths("constant:30"), 6, seed=1)
AIM_PER_S = 2000.0


def generated_load(duration_s: float) -> list[Row]:
    """Offer one rate after the other to a server that answers at once. Both have their own core.

    A rate is sustained while the 99th percentile of the generator's own lateness is within
    `farrank_loadtest.latency.sweep`'s bounds. Beyond them, a load test calls itself generator-bound.
    """
    cores = os.sched_getaffinity(0)
    with child("the server", answer_at_once, max(cores)) as server:
        address = f"127.0.0.1:{server.ask()}"
        pin({min(cores)})
        try:
            steps = offer(address, GENERATED.calls, RATES_PER_S, duration_s)
        finally:
            pin(cores)
    rows = []
    for step in steps:
        found, bound = step.whole, "; GENERATOR-BOUND" if step.generator_bound else ""
        p50, p99 = (duration_text(found.lag.percentile_s(percent)) for percent in (50, 99))
        figures = (
            f"answered {found.goodput_per_s:,.1f}/s, lag p50 {p50}, p99 {p99}, thread busy {found.busy:.0%}"
        )
        rows.append(Row(f"{step.amount:,.0f} calls/s", figures + bound))
    sustained = max((step.amount for step in steps if not step.generator_bound), default=0.0)
    what = f"calls/s of {GENERATED_DOCUMENTS} documents of 30 tokens, sustained on one core"
    if len(cores) == 1:
        what += ", shared with the server: too low"
    return [*rows, Row(what, f"{sustained:,.0f}", f"at least {AIM_PER_S:,.0f}", sustained >= AIM_PER_S)]


def pin(cores: set[int]) -> None:
    """Pin all threads of this process, and those that they start: gRPC's threads may exist already."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def answer_at_once(asked: Connection, core: int) -> None:
    """Serve on a free loopback port, send its number, and answer every call with the same bytes until killed.

    With such a server, the benchmark measures only the caller.
    """
    os.sched_setaffinity(0, {core})
    answer = rerank_pb2.RerankResponse(
        results=[rerank_pb2.Result(index=place, score=-float(place)) for place in range(GENERATED_DOCUMENTS)],
        timings=rerank_pb2.Timings(total_ns=1000, queue_ns=100, inference_ns=500),
    ).SerializeToString()

    async def rerank(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return answer

    async def serve() -> None:
        # Without serializers, requests and answers stay bytes.
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(rerank)
        server = grpc.aio.server()
        service = grpc.method_handlers_generic_handler("farrank.v1.RerankService", {"Rerank": handler})
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        asked.recv()
        asked.send(port)
        await server.wait_for_termination()

    asyncio.run(serve())
