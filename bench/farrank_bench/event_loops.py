"""The cost of calls on a server's event loop: admission, and the longest time that the loop is blocked."""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from farrank_bench.report import Row, below, spread
from farrank_bench.rounds import child
from farrank_bench.served import RANKER, watch_loaded
from farrank_loadtest.loops import Sample
from farrank_loadtest.workloads import Workload
from farrank_loadtest.workloads.synthetic import make_up, parse_lengths
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_server.config.schema import HttpConfig, LimitsConfig, ListenConfig, RankerConfig, ServerConfig
from farrank_server.engine.admission.estimates import Speed, Speeds
from farrank_server.engine.admission.reservations import RankerWork, Reservation, Reservations
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

    def claim() -> Reservation:
        return Reservation([RankerWork(RANKER, CALL_TOKENS)], 2000, 2000, 0.0, randomly.uniform(1e6, 2e6))

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
