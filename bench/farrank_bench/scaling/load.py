"""Load on replicas whose devices sleep: closed loads, open loads, and one caller alone."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import psutil

from farrank_bench.rounds import ContenderFailed
from farrank_bench.scaling.callers import CONNECT_S, Callers, Options, ask
from farrank_bench.scaling.calls import EVEN, MIN_TOKENS, QUERY, Sizes, call_of
from farrank_bench.scaling.one_queue import long_run_s, waits_s
from farrank_bench.served import check
from farrank_client import AsyncClient, Client, RetryPolicy
from farrank_loadtest.loops import Sample, run_closed, started_clock
from farrank_loadtest.targets import TargetError
from farrank_loadtest.workloads import Call

SIMULATED_CALLS = 200_000


@dataclass(frozen=True, slots=True)
class Busy:
    """Processor time in cores: of this process and its descendants, and of the whole machine."""

    own: float
    all: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A period of load: the samples of its calls, its length, and the busy cores."""

    samples: Sequence[Sample]
    seconds: float
    busy: Busy

    @property
    def per_s(self) -> float:
        """Calls per second between the first and the last call's end; the period's own ends are arbitrary."""
        ends_s = sorted(sample.done_s for sample in self.samples)
        return (len(ends_s) - 1) / (ends_s[-1] - ends_s[0])


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency in ms, and one queue's, with the same arrivals and services and in the long run (M/G/k)."""

    p50: float
    p99: float
    p99_same_arrivals: float
    p99_long_run: float
    outside_queue_and_device: float
    calls: int


def cpu_now_s() -> tuple[float, float]:
    """Return the processor time so far of this process and its descendants, and of the whole machine."""
    this, own_s = psutil.Process(), 0.0
    for process in (this, *this.children(recursive=True)):
        # A process may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            own_s += sum(process.cpu_times()[:2])
    machine = psutil.cpu_times()
    return own_s, machine.user + machine.nice + machine.system + machine.irq + machine.softirq


def closed_load(
    address: str, callers: int, warm_up_s: float, seconds: float, calls: Iterator[Call]
) -> LoadResult:
    """Let each caller send one call after the other. Calls that end after the warm-up count.

    Raises: ContenderFailed if a call gets no answer, or the answer to another call.
    """
    samples: list[Sample] = []
    busy: list[Busy] = []

    async def load() -> None:
        once = RetryPolicy(max_attempts=1)
        # Made here, because a client belongs to the event loop that it is made on.
        async with AsyncClient(address, retry=once) as client:
            await _connect(client)
            now_s = started_clock()
            watching = asyncio.create_task(cpu_while(seconds, warm_up_s))
            until_s = warm_up_s + seconds
            asking = partial(ask, client)
            await run_closed(asking, calls, callers, until_s, samples.append, now_s, max_calls=10_000_000)
            busy.append(await watching)

    asyncio.run(load())
    check(samples)
    counted = [each for each in samples if warm_up_s <= each.done_s < warm_up_s + seconds]
    return LoadResult(counted, seconds, busy[0])


def open_load(
    callers: Callers,
    address: str,
    rate_per_s: float,
    warm_up_s: float,
    seconds: float,
    seed: int,
    *,
    sizes: Sizes = EVEN,
    options: Options = (),
) -> LoadResult:
    """Send calls as independent callers do. Returns the samples of all calls, including the warm-up's.

    Raises: ContenderFailed if a call gets no answer, or the answer to another call.
    """
    callers.begin(address, options, sizes, rate_per_s, warm_up_s + seconds, seed)
    busy = asyncio.run(cpu_while(seconds, warm_up_s))
    samples = callers.samples()
    check(samples)
    return LoadResult(samples, seconds, busy)


async def _connect(client: AsyncClient) -> None:
    """Open the connections to replicas before the load begins. Raises: ContenderFailed."""
    try:
        await ask(client, call_of(MIN_TOKENS))
    except TargetError as error:
        raise ContenderFailed(str(error)) from error
    await asyncio.sleep(CONNECT_S)


async def cpu_while(seconds: float, after_s: float = 0.0) -> Busy:
    """Wait for `after_s`, then measure the busy cores for `seconds`."""
    await asyncio.sleep(after_s)
    began_s, (own_s, all_s) = time.perf_counter(), cpu_now_s()
    await asyncio.sleep(seconds)
    (own_after_s, all_after_s), took_s = cpu_now_s(), time.perf_counter() - began_s
    return Busy((own_after_s - own_s) / took_s, (all_after_s - all_s) / took_s)


def latency(
    loaded: LoadResult, replicas: int, rate_per_s: float, warm_up_s: float, seed: int, token_s: float
) -> Latency:
    """Compare the latency of an open load with one queue for as many servers as there are replicas.

    A call's service time is the sleep for its own tokens, because a server's inference time of a call
    includes the other calls of its batch.
    """
    samples = loaded.samples
    services_s = [sample.counts["tokens"] * token_s for sample in samples]
    waited_s = waits_s([sample.due_s for sample in samples], services_s, replicas)
    counted = [place for place, sample in enumerate(samples) if sample.due_s >= warm_up_s]
    measured = [samples[place].latency_s for place in counted]
    at_best = [waited_s[place] + services_s[place] for place in counted]
    outside_s = [
        samples[place].latency_s - services_s[place] - samples[place].stages_s["queue"] for place in counted
    ]
    simulated = long_run_s(rate_per_s, services_s, replicas, SIMULATED_CALLS, seed)
    p50, p99 = percentiles_ms(measured, 50, 99)
    (best_p99,), (simulated_p99,) = percentiles_ms(at_best, 99), percentiles_ms(simulated, 99)
    (outside,) = percentiles_ms(outside_s, 50)
    return Latency(p50, p99, best_p99, simulated_p99, outside, len(counted))


def percentiles_ms(values_s: Sequence[float], *percents: float) -> list[float]:
    """Return percentiles in ms, each the smallest value that at least this percentage does not exceed."""
    found: list[float] = np.percentile(values_s, percents, method="inverted_cdf").tolist()
    return [1e3 * each for each in found]


def in_turns(
    clients: Mapping[str, Client], texts: Mapping[str, str], rounds: int, calls: int
) -> dict[tuple[str, str], list[float]]:
    """Send one call at a time, in each way in each round. Each round starts with the next way.

    Returns the caller's median wait in ms in each round, by way and name of the text. The first round is a
    warm-up and left out.
    """
    found: dict[tuple[str, str], list[float]] = {each: [] for each in itertools.product(clients, texts)}
    ways = list(clients)
    for number in range(rounds + 1):
        turn = number % len(ways)
        for way in ways[turn:] + ways[:turn]:
            for name, text in texts.items():
                waits = []
                for _ in range(calls):
                    asked_s = time.perf_counter()
                    clients[way].rerank(QUERY, [text])
                    waits.append(1e3 * (time.perf_counter() - asked_s))
                if number:
                    found[way, name].append(statistics.median(waits))
    return found
