"""Servers under load. farrank_loadtest sends every call and times it from the moment when it was due."""

import asyncio
import itertools
import math
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from farrank_bench.rounds import ContenderFailed, PassResult, Scores
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_loadtest.depths import Depth
from farrank_loadtest.loops import Ask, Sample, run_closed, started_clock
from farrank_loadtest.targets import Answer
from farrank_loadtest.targets.address import open_target
from farrank_loadtest.workloads import Call, Workload

if TYPE_CHECKING:
    from farrank_loadtest.latency.sweep import StepResult, Sweep

RANKER = "bench"
CALL_TIMEOUT_S, OFFERED_TIMEOUT_S = 600.0, 10.0
HANG_UP_S = 2.0

T = TypeVar("T")


def model_s(sample: Sample) -> float:
    """Return the seconds of a call in encoder and aggregator: the ranker's head is part of the model."""
    return sample.stages_s["inference"] + sample.stages_s["aggregation"]


def answer_all(
    address: str, calls: Sequence[Call], callers: int, *, ranker: str = "", depth: Depth | None = None
) -> tuple[float, Sequence[Sample], Scores]:
    """Let callers work through the calls. Each caller sends its next call when it has its answer.

    Returns the seconds for all calls, the calls' samples, and the scores in the order of the calls. `address`
    is a target as `farrank loadtest` names it. Raises: ContenderFailed if a call is not answered.
    """

    async def ask_all() -> tuple[float, Sequence[Sample], Scores]:
        scores: dict[Call, tuple[float, ...]] = {}
        samples: list[Sample] = []
        async with _asking(address, ranker, scores, depth) as ask:
            now_s = started_clock()
            await run_closed(ask, iter(calls), callers, math.inf, samples.append, now_s, max_calls=len(calls))
            seconds = now_s()
        check(samples)
        return seconds, samples, tuple(scores[call] for call in calls)

    return asyncio.run(ask_all())


def watch_loaded(
    address: str, calls: Sequence[Call], callers: int, watch: Callable[[], Awaitable[T]]
) -> tuple[T, list[Sample]]:
    """Let callers send the calls in turn while `watch` runs, then cancel all calls at once.

    Returns the result of `watch`, and the samples.
    """

    async def load() -> tuple[T, list[Sample]]:
        samples: list[Sample] = []
        async with _asking(address, "", {}) as ask:
            source, now_s = itertools.cycle(calls), started_clock()
            loading = asyncio.create_task(
                run_closed(ask, source, callers, math.inf, samples.append, now_s, max_calls=1_000_000)
            )
            try:
                return await watch(), samples
            finally:
                loading.cancel()
                await asyncio.wait((loading,))
                # This loop still receives gRPC's events of the cancelled calls.
                await asyncio.sleep(HANG_UP_S)

    return asyncio.run(load())


def offer(
    address: str, calls: Sequence[Call], rates_per_s: Sequence[float], duration_s: float
) -> "Sequence[StepResult]":
    """Send calls at Poisson times, whether or not earlier ones are answered, at one rate after the other.

    Each call has a timeout of `OFFERED_TIMEOUT_S`.
    Raises: ContenderFailed if not all calls were sent, e.g. because the server ended; KeyboardInterrupt.
    """
    # Imported here, because it needs packages that a machine with a GPU may lack.
    from farrank_loadtest.latency.plan import Caps, Plan
    from farrank_loadtest.latency.steps import upwards
    from farrank_loadtest.latency.sweep import SilentSweepWatcher, sweep

    caps = Caps(rate_per_s=max(rates_per_s), seconds=duration_s * len(rates_per_s))
    plan = Plan("open", None, "poisson", 0.0, duration_s, 1, OFFERED_TIMEOUT_S, seed=3, caps=caps)

    async def send() -> "Sweep":
        target = open_target(address)
        try:
            workload = Workload("the benchmark", tuple(calls))
            return await sweep(target, workload, plan, upwards(rates_per_s), SilentSweepWatcher())
        finally:
            await target.close()

    found = asyncio.run(send())
    # An interrupted sweep returns the steps so far, but a part of them decides nothing here.
    if found.interrupted:
        raise KeyboardInterrupt
    if found.note:
        raise ContenderFailed(found.note)
    return found.steps


@asynccontextmanager
async def _asking(
    address: str, ranker: str, scores: dict[Call, tuple[float, ...]], depth: Depth | None = None
) -> AsyncIterator[Ask]:
    """Open the target. Each answer's scores are stored in `scores`."""
    target = open_target(address, depth=depth)

    async def ask(call: Call) -> Answer:
        answer = await target.rerank(call.query, call.documents, ranker=ranker, timeout_s=CALL_TIMEOUT_S)
        scores[call] = answer.scores
        return answer

    try:
        yield ask
    finally:
        await target.close()


def check(samples: Sequence[Sample]) -> None:
    """Raise ContenderFailed if a call was not answered."""
    for sample in samples:
        if not sample.is_ok:
            raise ContenderFailed(f"{sample.status}: {sample.message}")


def score_served(address: str, model: str, callers: int, calls: Sequence[Call]) -> PassResult:
    """Let callers work through the calls. A server that reports no pairs counts one for each document.

    Raises: ContenderFailed if the server does not answer a call.
    """
    seconds, samples, scores = answer_all(address, calls, callers, ranker=model)
    pairs = sum(sample.counts.get("pairs", 0) for sample in samples)
    return PassResult(seconds, pairs or sum(map(len, scores)), scores)


def read_metrics(url: str, *names: str) -> list[float]:
    """Read the page once, and sum each metric's samples over all labels. A metric without samples is 0."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(url) as page:
        families = text_string_to_metric_families(page.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return [math.fsum(sample.value for sample in samples if sample.name == name) for name in names]


def resident_mib(pid: int) -> float:
    """Return the memory of a process and its children, in MiB."""
    import psutil

    process = psutil.Process(pid)
    return float(sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))) / 2**20


@contextmanager
def serving(artifact: Path, *arguments: str, **settings: object) -> Iterator[SpawnedServer]:
    """Run `farrank serve` of a ranker named `RANKER`, `--set` for each setting, until the block is left.

    It reads documents whole: contenders read all pairs, too.
    """
    settings = {f"rankers.{RANKER}.depth.mode": "all", **settings}
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    flags = ["--ranker", f"{RANKER}={artifact}", "--log-level", "warning", *arguments, *sets]
    with spawned_server(flags) as server:
        yield server


@contextmanager
def watched_memory(pid: int, every_s: float = 1.0) -> Iterator[list[float]]:
    """Collect the process's memory in MiB while the block runs."""
    samples: list[float] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            samples.append(resident_mib(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
