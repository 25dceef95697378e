"""Measure swaps of a ranker under load: `python -m farrank_bench.swaps`.

A real server has the embedded backbone with an untrained head, in two versions, behind a link. Callers send
independent calls at a steady rate. Periods without and with swaps take turns in one run: a swap moves the
link and asks the server to reload. Each version's ranking of each text is known from calls before the load,
so an answer that mixes two versions would match neither. After each swap the server's memory is read. Each
period is printed when it ends, so that a run that is cut off leaves figures, too.
"""

import asyncio
import math
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import numpy as np

from farrank.v1 import rerank_pb2 as pb
from farrank.v1 import rerank_pb2_grpc
from farrank_bench.report import Command, Heading, Row, spread
from farrank_bench.served import read_metrics, resident_mib
from farrank_cli.spawn import SpawnedServer, spawned_server
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_server.pid_file import reload

DOCUMENTS, QUERIES = 4, 8
WORDS = ("river", "mountain", "harbour", "bridge", "railway", "market", "church", "island", "forest", "mill")
TIMEOUT_S = 30.0
RELOAD_S = 60.0
# A score's last bits depend on the other texts of its batch.
DECIMALS = 3
AIM = 1.2
# Memory after the last swaps may be this many times that after the first ones.
MEMORY_AIM = 1.05
# Memory is printed after each this many swaps.
SHOWN_EACH = 10

Answer = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Period:
    """A time with or without swaps: what became of its calls, and how its swaps went.

    `during_s` has the latencies of those calls again that came while a swap was going on. `refused` counts
    calls that were asked to come again later, by reason; `lost` those that failed otherwise, by status.
    `memory_mib` and `tokens_per_s`, the speed by which calls are admitted, are those at its end.
    """

    swapping: bool
    has_swapped: bool = False
    latencies_s: list[float] = field(default_factory=list)
    during_s: list[float] = field(default_factory=list)
    swaps_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    mixed: int = 0
    memory_mib: float = 0.0
    tokens_per_s: float = 0.0

    def __str__(self) -> str:
        """A line for people."""
        return (
            f"{len(self.swaps_s)} swaps; calls answered {len(self.latencies_s)}, refused "
            f"{self.refused.total()}, lost {self.lost.total()}, of no single version {self.mixed}; p50, p99 "
            f"{percentile_ms(self.latencies_s, 50):.1f}, {percentile_ms(self.latencies_s, 99):.1f} ms; "
            f"{self.memory_mib:.0f} MiB, {self.tokens_per_s:.0f} tokens/s measured"
        )


def percentile_ms(latencies_s: list[float], percent: float) -> float:
    """A percentile in milliseconds; NaN of no latencies."""
    return 1e3 * float(np.percentile(latencies_s, percent)) if latencies_s else math.nan


def requests() -> list[pb.RerankRequest]:
    """Make the calls: the same few texts in each run."""
    chance = random.Random(7)
    return [
        pb.RerankRequest(
            query=" ".join(chance.sample(WORDS, 2)),
            documents=[pb.Document(text=" ".join(chance.choices(WORDS, k=120))) for _ in range(DOCUMENTS)],
        )
        for _ in range(QUERIES)
    ]


class Swapped:
    """A server, the link to its ranker, and what its answers said."""

    def __init__(
        self, server: SpawnedServer, link: Path, versions: tuple[Path, Path], pid_file: Path
    ) -> None:
        self._server, self._link, self._versions, self._pid_file = server, link, versions, pid_file
        self._requests = requests()
        self._now = 0
        self._is_swapping = False
        self._known: dict[tuple[str, int], Answer] = {}
        self.by_version: Counter[str] = Counter()
        self.memory_mib: list[float] = []

    async def run(self, pairs: int, swaps: int, seconds: float, rate_per_s: float) -> list[Period]:
        """Let periods of `seconds` without and with `swaps` take turns. Prints each when it ends."""
        periods: list[Period] = []
        async with grpc.aio.insecure_channel(self._server.address) as channel:
            self._stub = rerank_pb2_grpc.RerankServiceStub(channel)  # type: ignore[no-untyped-call]
            for _ in self._versions:
                await self._learn()
                await self._swap()
            for number in range(2 * pairs):
                period = Period(swapping=number % 2 == 1)
                loading = asyncio.create_task(self._load(period, number, seconds, rate_per_s))
                for place in range(swaps if period.swapping else 0):
                    due_s = (place + 0.5) * seconds / swaps
                    await asyncio.sleep(max(0.0, self._began_s + due_s - time.monotonic()))
                    period.swaps_s.append(await self._swap())
                    self.memory_mib.append(resident_mib(self._server.process.pid))
                period.has_swapped = True
                await loading
                period.memory_mib = resident_mib(self._server.process.pid)
                (period.tokens_per_s,) = await asyncio.to_thread(
                    read_metrics, self._server.metrics_url, "farrank_device_tokens_per_second"
                )
                periods.append(period)
                print(f"  period {number + 1} of {2 * pairs}: {period}", flush=True)
        return periods

    async def _swap(self) -> float:
        """Serve the other version. Returns after how many seconds it served."""
        began_s = time.monotonic()
        self._now = 1 - self._now
        fresh = self._link.with_name("fresh")
        fresh.symlink_to(self._versions[self._now])
        fresh.replace(self._link)
        self._is_swapping = True
        try:
            await asyncio.to_thread(reload, self._pid_file, RELOAD_S)
        finally:
            self._is_swapping = False
        return time.monotonic() - began_s

    async def _learn(self) -> None:
        for number, request in enumerate(self._requests):
            answer = await self._stub.Rerank(request, timeout=TIMEOUT_S)
            self._known[answer.ranker.version, number] = _ranking(answer)

    async def _load(self, period: Period, number: int, seconds: float, rate_per_s: float) -> None:
        chance = random.Random(number)
        self._began_s = due_s = time.monotonic()
        calls: set[asyncio.Task[None]] = set()
        # Swaps that take longer than planned are under load, too.
        while due_s < self._began_s + seconds or (period.swapping and not period.has_swapped):
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            calls.add(asyncio.create_task(self._call(period, chance.randrange(QUERIES), due_s)))
            due_s += chance.expovariate(rate_per_s)
        await asyncio.gather(*calls)

    async def _call(self, period: Period, number: int, due_s: float) -> None:
        during = self._is_swapping
        try:
            answer = await self._stub.Rerank(self._requests[number], timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                # The figures in the reason differ from call to call.
                period.refused[re.sub(r"\d[\d.]*", "N", error.details() or "")] += 1
            else:
                period.lost[error.code().name] += 1
            return
        latency_s = time.monotonic() - due_s
        period.latencies_s.append(latency_s)
        if during:
            period.during_s.append(latency_s)
        self.by_version[answer.ranker.version] += 1
        known = self._known.get((answer.ranker.version, number), ())
        if not _agree(known, _ranking(answer)):
            period.mixed += 1


def _ranking(answer: pb.RerankResponse) -> Answer:
    return tuple((each.index, each.score) for each in answer.results)


def _agree(known: Answer, found: Answer) -> bool:
    """Whether two answers have the same scores, but for their last bits."""
    a, b = dict(known), dict(found)
    return a.keys() == b.keys() and all(abs(a[each] - b[each]) < 10**-DECIMALS for each in a)


def measure(
    pairs: int, swaps: int, seconds: float, rate_per_s: float, more_flags: Sequence[str] = ()
) -> list[Row]:
    """Swap under load. `more_flags` are further flags of the server."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        versions = folder / "one", folder / "two"
        for seed, version in enumerate(versions):
            save_ranker(new_ranker("firstp", "embedded", seed=seed), version)
        link, pid_file = folder / "current", folder / "pid"
        link.symlink_to(versions[0])
        flags = (f"--ranker=it={link}", f"--pid-file={pid_file}", "--log-level=warning", *more_flags)
        server = stack.enter_context(spawned_server(flags))
        swapped = Swapped(server, link, versions, pid_file)
        return rows(asyncio.run(swapped.run(pairs, swaps, seconds, rate_per_s)), swapped)


def rows(periods: list[Period], swapped: Swapped) -> list[Row]:
    """Report the calls, their latency with and without swaps, and the memory."""
    steady, swapping = ([each for each in periods if each.swapping is which] for which in (False, True))
    latencies_s = {
        "steady": [s for each in steady for s in each.latencies_s],
        "swapping": [s for each in swapping for s in each.latencies_s],
        "during": [s for each in swapping for s in each.during_s],
    }
    p50, p99 = (
        {kind: percentile_ms(of, percent) for kind, of in latencies_s.items()} for percent in (50, 99)
    )
    ratio = p99["swapping"] / p99["steady"]
    took_s = [each for period in swapping for each in period.swaps_s]
    refused, lost = (
        sum((getattr(each, name) for each in periods), Counter[str]()) for name in ("refused", "lost")
    )
    mixed = sum(each.mixed for each in periods)
    memory = [float(np.median(each)) for each in np.array_split(swapped.memory_mib, 5) if len(each)]
    shown = ", ".join(f"{each:.0f}" for each in swapped.memory_mib[SHOWN_EACH - 1 :: SHOWN_EACH])
    growth = memory[-1] / memory[0]
    versions = ", ".join(str(count) for count in swapped.by_version.values())
    return [
        Row("swaps", str(len(took_s))),
        Row("a swap, from the request to the answer, s", spread(took_s, ".2f")),
        Row("answered calls", str(sum(len(each.latencies_s) for each in periods))),
        Row("calls refused, by reason", str(dict(refused) or 0), "0", not refused),
        Row("calls lost, by status", str(dict(lost) or 0), "0", not lost),
        Row("answers of each version", versions),
        Row("answers that match no single version", str(mixed), "0", not mixed),
        Row(
            "p50 without swaps / with / of calls that came during one, ms",
            f"{p50['steady']:.1f} / {p50['swapping']:.1f} / {p50['during']:.1f}",
        ),
        Row(
            "p99 without swaps / with / of calls that came during one, ms",
            f"{p99['steady']:.1f} / {p99['swapping']:.1f} / {p99['during']:.1f}",
        ),
        Row("p99 with swaps over without", f"{ratio:.2f}", f"at most {AIM:g}", ratio <= AIM),
        Row(
            "measured speed after each period, tokens/s",
            ", ".join(f"{each.tokens_per_s:.0f}" for each in periods),
        ),
        Row(f"server memory after each {SHOWN_EACH} swaps, MiB", shown),
        Row(
            "server memory after the last fifth of the swaps over the first",
            f"{growth:.2f}",
            f"at most {MEMORY_AIM:g}",
            growth <= MEMORY_AIM,
        ),
    ]


def main() -> int:
    """Print a table."""
    command = Command("farrank_bench.swaps", __doc__)
    add = command.options.add_argument
    add("--pairs", type=int, default=10, help="pairs of periods without and with swaps (%(default)s)")
    add("--swaps", type=int, default=10, help="swaps in a period with swaps (%(default)s)")
    add("--seconds", type=float, default=30.0, help="length of a period (%(default)s)")
    add("--rate", type=float, default=5.0, help="calls a second (%(default)s)")
    given = command.parse(None)
    notes = f"the embedded backbone, {DOCUMENTS} documents a call, {given.rate:g} calls/s"
    what = partial(measure, given.pairs, given.swaps, given.seconds, given.rate)
    return command.report(Heading("Swaps under load", notes), [("A ranker is swapped", what)], given.out)


if __name__ == "__main__":
    sys.exit(main())
