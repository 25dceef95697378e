"""The server's side: callers that wait for their answers (closed loop), and calls on a schedule (open)."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from farrank_bench.calls import BenchCall
from farrank_client import AsyncClient, Client, FarrankError, RetryPolicy

NO_RETRY = RetryPolicy(max_attempts=1)
CALL_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """What a fixed number of callers got."""

    calls: int
    pairs: int
    seconds: float

    @property
    def pairs_per_s(self) -> float:
        """Pairs per second."""
        return self.pairs / self.seconds

    @property
    def calls_per_s(self) -> float:
        """Calls per second: the capacity."""
        return self.calls / self.seconds


@dataclass(slots=True)
class OpenLoop:
    """What scheduled calls got. `answered_in_time` counts answers up to the schedule's end."""

    offered: int = 0
    answered_in_time: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)


async def run_closed(address: str, calls: Sequence[BenchCall], callers: int) -> ClosedLoop:
    """Let `callers` work through the calls, each sending its next one when it has its answer."""
    waiting = iter(calls)
    pairs = 0

    async with AsyncClient(address, retry=NO_RETRY) as client:

        async def caller() -> None:
            nonlocal pairs
            for call in waiting:
                ranking = await client.rerank(call.query, call.texts, timeout_s=CALL_TIMEOUT_S)
                pairs += ranking.usage.pairs

        started_s = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        return ClosedLoop(len(calls), pairs, time.perf_counter() - started_s)


async def run_open(
    address: str,
    calls: Sequence[BenchCall],
    rate_per_s: float,
    duration_s: float,
    timeout_s: float,
    seed: int,
) -> OpenLoop:
    """Send calls at Poisson times of a given rate, whether or not earlier ones are answered."""
    outcome = OpenLoop()
    randomly = random.Random(seed)

    async with AsyncClient(address, retry=NO_RETRY) as client:
        started_s = time.perf_counter()

        async def send(call: BenchCall) -> None:
            sent_s = time.perf_counter()
            try:
                await client.rerank(call.query, call.texts, timeout_s=timeout_s)
            except FarrankError as error:
                outcome.statuses[type(error).__name__] += 1
                return
            now_s = time.perf_counter()
            outcome.statuses["OK"] += 1
            outcome.latencies_s.append(now_s - sent_s)
            if now_s - sent_s <= timeout_s and now_s - started_s <= duration_s:
                outcome.answered_in_time += 1

        async with asyncio.TaskGroup() as group:
            due_s = 0.0
            while (due_s := due_s + randomly.expovariate(rate_per_s)) < duration_s:
                await asyncio.sleep(started_s + due_s - time.perf_counter())
                group.create_task(send(calls[outcome.offered % len(calls)]))
                outcome.offered += 1
    return outcome


def run_one_by_one(address: str, call: BenchCall, repeats: int) -> list[tuple[float, float]]:
    """Send one call again and again to an otherwise idle server; seconds of each, and of its model time."""
    times_s = []
    with Client(address, retry=NO_RETRY) as client:
        for _ in range(repeats):
            started_s = time.perf_counter()
            ranking = client.rerank(call.query, call.texts, timeout_s=CALL_TIMEOUT_S)
            latency_s = time.perf_counter() - started_s
            timings = ranking.timings
            # Encoder and aggregator: the ranker's head is part of the model.
            times_s.append((latency_s, (timings.inference_ns + timings.aggregation_ns) / 1e9))
    return times_s
