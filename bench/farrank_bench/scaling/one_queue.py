"""One queue for k servers, first come, first served: a bound that no way of dividing calls beats."""

import heapq
import random
from collections.abc import Sequence


def waits_s(arrivals_s: Sequence[float], services_s: Sequence[float], servers: int) -> list[float]:
    """Return each call's wait in seconds if the first free server takes the next call.

    `arrivals_s` ascend. Raises: ValueError if there is no server, or not one service time for each arrival.
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
    """Simulate M/G/k: Poisson arrivals, with service times drawn from the measured ones.

    Returns the sums of wait and service in seconds, without the first tenth, which found the queue empty.
    """
    randomly = random.Random(seed)
    arrivals, now_s = list[float](), 0.0
    for _ in range(calls):
        now_s += randomly.expovariate(rate_per_s)
        arrivals.append(now_s)
    drawn = randomly.choices(services_s, k=calls)
    waits = waits_s(arrivals, drawn, servers)
    return [wait + service for wait, service in zip(waits, drawn, strict=True)][calls // 10 :]
