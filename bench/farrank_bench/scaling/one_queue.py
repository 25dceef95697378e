"""One queue before k servers, first come, first served: what no way of dividing calls beats."""

import heapq
import random
from collections.abc import Sequence


def waits_s(arrivals_s: Sequence[float], services_s: Sequence[float], servers: int) -> list[float]:
    """Say how long each call waits: whichever server is free first takes the next one.

    `arrivals_s` ascend. Raises: ValueError if there is no server, or not a service for each arrival.
    """
    if servers < 1:
        raise ValueError(f"servers: {servers} is not allowed; it must be at least 1")
    free_at_s = [0.0] * servers
    waits = []
    for arrival_s, service_s in zip(arrivals_s, services_s, strict=True):
        begins_s = max(arrival_s, free_at_s[0])
        heapq.heapreplace(free_at_s, begins_s + service_s)
        waits.append(begins_s - arrival_s)
    return waits


def long_run_s(
    rate_per_s: float, services_s: Sequence[float], servers: int, calls: int, seed: int
) -> list[float]:
    """Simulate M/G/k: arrivals of independent callers, services drawn from those measured.

    Returns waits and services together, in seconds, those of the first tenth left out: they found it empty.
    """
    randomly = random.Random(seed)
    arrivals, now_s = list[float](), 0.0
    for _ in range(calls):
        now_s += randomly.expovariate(rate_per_s)
        arrivals.append(now_s)
    drawn = randomly.choices(services_s, k=calls)
    waits = waits_s(arrivals, drawn, servers)
    return [wait + service for wait, service in zip(waits, drawn, strict=True)][calls // 10 :]
