"""Ways to divide calls among replicas, and their p99 compared with that of one queue for all replicas.

Six callers, each in its own process with its own client, send calls of even or of mixed sizes to eight
replicas.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from farrank_bench.report import Row, below, spread
from farrank_bench.scaling.callers import Callers, Options
from farrank_bench.scaling.calls import EVEN, MIXED, Sizes
from farrank_bench.scaling.load import Latency, LoadResult, latency, open_load
from farrank_bench.scaling.ways import CLIENT, ENVOY, envoy_before, replicas
from farrank_client.calls import SERVICE

REPLICAS = 8
KINDS: Mapping[str, Sizes] = {"even": EVEN, "mixed": MIXED}
AIMS = {"even": 1.3, "mixed": 1.6}

ROUND_ROBIN, WEIGHTED, ENVOY_ALL = "round robin", "weighted round robin", "Envoy, least of all"

# The ways by their names on the command line.
WAYS = {
    "round-robin": ROUND_ROBIN,
    "weighted": WEIGHTED,
    "client": CLIENT,
    "envoy": ENVOY,
    "envoy-all": ENVOY_ALL,
}


def _grpcs_own(policy: str, **config: object) -> Options:
    """Return options with which gRPC balances calls by a policy, among healthy replicas."""
    service_config = {
        "loadBalancingConfig": [{policy: config}],
        "healthCheckConfig": {"serviceName": SERVICE},
    }
    return [("grpc.service_config", json.dumps(service_config))]


@dataclass(frozen=True, slots=True)
class BalancingSetup:
    """A way: the address of its calls, and the client's options."""

    address: str
    options: Options = ()


def balancing(
    kind: str,
    callers: Callers,
    mean_s: float,
    share: float,
    seeds: Sequence[int],
    warm_up_s: float,
    seconds: float,
    measured: Sequence[str],
) -> list[Row]:
    """Measure ways in turns with one kind of sizes. Each seed of arrivals and calls is a round.

    `mean_s` is a call's mean time on a device; `measured` are the ways.
    """
    sizes = KINDS[kind]
    rate_per_s = share * REPLICAS / mean_s
    found: dict[str, list[tuple[LoadResult, Latency]]] = {}
    with ExitStack() as stack:
        token_s = mean_s / sizes.mean_tokens
        servers = stack.enter_context(replicas(REPLICAS, token_s, sizes.batch_documents))
        everybody = ",".join(servers)
        # gRPC updates weights every 100 ms at most.
        weighted = _grpcs_own(
            "weighted_round_robin",
            enableOobLoadReport=True,
            oobReportingPeriod="0.1s",
            blackoutPeriod="0s",
            weightUpdatePeriod="0.1s",
        )
        ways = {
            ROUND_ROBIN: BalancingSetup(everybody, _grpcs_own("round_robin")),
            WEIGHTED: BalancingSetup(everybody, weighted),
            CLIENT: BalancingSetup(everybody),
        }
        for name, draws in ((ENVOY, 2), (ENVOY_ALL, REPLICAS)):
            if name not in measured:
                continue
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ways[name] = BalancingSetup(stack.enter_context(envoy_before(servers, folder, draws)))
        for number in seeds:
            for name in measured:
                way = ways[name]
                loaded = open_load(
                    callers,
                    way.address,
                    rate_per_s,
                    warm_up_s,
                    seconds,
                    seed=number,
                    sizes=sizes,
                    options=way.options,
                )
                seen = latency(loaded, REPLICAS, rate_per_s, warm_up_s, number, token_s)
                found.setdefault(name, []).append((loaded, seen))
                print(
                    f"  {kind}, {name}: p50 {seen.p50:.0f}, p99 {seen.p99:.0f} ms, one queue "
                    f"{seen.p99_same_arrivals:.0f}, {loaded.busy.own:.2f} of {loaded.busy.all:.2f} cores",
                    flush=True,
                )
    return rows(kind, found)


def rows(kind: str, found: Mapping[str, Sequence[tuple[LoadResult, Latency]]]) -> list[Row]:
    """Report p50 and p99 of each way, and its p99 over that of one queue with the same arrivals."""
    written = []
    for name, measured in found.items():
        seen = [each for _, each in measured]
        p50, p99, best = (
            median(getattr(each, figure) for each in seen) for figure in ("p50", "p99", "p99_same_arrivals")
        )
        own, whole = (median(getattr(loaded.busy, part) for loaded, _ in measured) for part in ("own", "all"))
        calls = sum(each.calls for each in seen)
        written.append(
            Row(
                f"{kind}, {name}: p50 and p99, ms",
                f"{p50:.0f} and {p99:.0f}; one queue's p99 {best:.0f} with the same arrivals; {calls} calls; "
                f"{own:.2f} cores by this benchmark, {whole:.2f} by the whole machine",
            )
        )
        ratios = [each.p99 / each.p99_same_arrivals for each in seen]
        what = f"{kind}, {name}: p99 over one queue's"
        written.append(
            below(what, ratios, AIMS[kind], ".2f") if name == CLIENT else Row(what, spread(ratios, ".2f"))
        )
    return written
