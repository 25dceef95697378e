"""Servers under load: every call goes through farrank_loadtest, which times it from when it was due."""

import asyncio
import itertools
import math
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from farrank_bench.contenders.rounds import ContenderFailed, Scored, Scores
from farrank_loadtest.loops import Sample, run_closed, started_clock
from farrank_loadtest.targets import Answer, Target
from farrank_loadtest.targets.address import open_target
from farrank_loadtest.workloads import Call, Workload

if TYPE_CHECKING:
    from farrank_loadtest.latency.recorder import Recorder

CALL_TIMEOUT_S = 600.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answered:
    """What callers got who worked through a list of calls; `scores` are in the order of the calls."""

    seconds: float
    samples: Sequence[Sample]
    scores: Scores

    @property
    def pairs(self) -> int:
        """Pairs that the server ran for them."""
        return sum(sample.counts["pairs"] for sample in self.samples)

    @property
    def latencies_s(self) -> list[float]:
        """Seconds of each call."""
        return [sample.latency_s for sample in self.samples]

    @property
    def model_s(self) -> list[float]:
        """Seconds that encoder and aggregator took of each call: the ranker's head is part of the model."""
        return [sample.stages_s["inference"] + sample.stages_s["aggregation"] for sample in self.samples]


def answer_all(address: str, calls: Sequence[Call], callers: int, *, ranker: str = "") -> Answered:
    """Let callers work through the calls, each sending its next one when it has its answer.

    `address` is as `farrank loadtest` names targets. Raises: ContenderFailed if a call is not answered.
    """

    async def ask_all() -> Answered:
        scores: dict[Call, tuple[float, ...]] = {}
        async with _opened(address) as target:

            async def ask(call: Call) -> Answer:
                answer = await _ask(target, call, ranker)
                scores[call] = answer.scores
                return answer

            samples: list[Sample] = []
            now_s = started_clock()
            await run_closed(ask, iter(calls), callers, math.inf, samples.append, now_s, max_calls=len(calls))
            seconds = now_s()
        _check(samples)
        return Answered(seconds, samples, tuple(scores[call] for call in calls))

    return asyncio.run(ask_all())


def watch_loaded(
    address: str, call: Call, callers: int, duration_s: float, watch: Callable[[], Awaitable[T]]
) -> T:
    """Let callers send one call again and again for the duration, and give what `watch` saw meanwhile.

    It begins to watch once the call has been answered. Raises: ContenderFailed if a call is not answered.
    """

    async def load() -> T:
        samples: list[Sample] = []
        async with _opened(address) as target, asyncio.TaskGroup() as group:

            async def ask(call: Call) -> Answer:
                return await _ask(target, call, "")

            await run_closed(ask, iter([call]), 1, math.inf, samples.append, started_clock(), max_calls=1)
            _check(samples)
            calls, now_s = itertools.repeat(call), started_clock()
            group.create_task(
                run_closed(ask, calls, callers, duration_s, samples.append, now_s, max_calls=1_000_000)
            )
            seen = await watch()
        _check(samples)
        return seen

    return asyncio.run(load())


def offer(
    address: str, calls: Sequence[Call], rate_per_s: float, duration_s: float, *, timeout_s: float, seed: int
) -> "Recorder":
    """Send calls at Poisson times, whether or not earlier ones are answered; failures are counted."""
    # Imported here: it needs packages that a machine with a GPU may lack.
    from farrank_loadtest.latency.plan import Caps, Plan
    from farrank_loadtest.latency.steps import Listed
    from farrank_loadtest.latency.sweep import Silent, sweep

    caps = Caps(rate_per_s=rate_per_s, seconds=duration_s)
    plan = Plan("open", None, "poisson", 0.0, duration_s, 1, timeout_s, seed, caps=caps)

    async def send() -> "Recorder":
        async with _opened(address) as target:
            workload = Workload("the benchmark", tuple(calls))
            found = await sweep(target, workload, plan, Listed([rate_per_s]), Silent())
            return found.steps[0].whole

    return asyncio.run(send())


@asynccontextmanager
async def _opened(address: str) -> AsyncIterator[Target]:
    target = open_target(address)
    try:
        yield target
    finally:
        await target.close()


async def _ask(target: Target, call: Call, ranker: str) -> Answer:
    return await target.rerank(call.query, call.documents, ranker=ranker, timeout_s=CALL_TIMEOUT_S)


def _check(samples: Sequence[Sample]) -> None:
    for sample in samples:
        if not sample.is_ok:
            raise ContenderFailed(f"{sample.status}: {sample.message}")


@dataclass(frozen=True, slots=True)
class Served:
    """A contender: a server at an address, its model, and how many call it at once."""

    address: str
    model: str
    callers: int
    calls: Sequence[Call]

    def score(self) -> Scored:
        """Let the callers work through the calls.

        Raises: ContenderFailed if the server refuses one.
        """
        answered = answer_all(self.address, self.calls, self.callers, ranker=self.model)
        return Scored(answered.seconds, sum(map(len, answered.scores)), answered.scores)


def read_metrics(url: str, *names: str) -> list[float]:
    """Sum each metric's samples over all labels, from one reading of the page; 0 for one without samples."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(url) as page:
        text = page.read().decode()
    sums = dict.fromkeys(names, 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in sums:
                sums[sample.name] += sample.value
    return [sums[name] for name in names]


def resident_mib(pid: int) -> float:
    """Memory of a process and its children, in MiB."""
    import psutil

    process = psutil.Process(pid)
    family = [process, *process.children(recursive=True)]
    return float(sum(each.memory_info().rss for each in family)) / 2**20


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
