"""When the calls of an open loop are due, in seconds from its start."""

import math
import random
from collections.abc import Callable, Iterator

# Takes calls a second, the duration in seconds, and a source of randomness.
Schedule = Callable[[float, float, random.Random], Iterator[float]]


def constant_arrivals(rate_per_s: float, duration_s: float, _: random.Random) -> Iterator[float]:
    """Space arrivals evenly, the first one at 0."""
    # By number rather than by adding up, so that no error adds up.
    return (number / rate_per_s for number in range(math.ceil(rate_per_s * duration_s)))


def poisson_arrivals(rate_per_s: float, duration_s: float, randomly: random.Random) -> Iterator[float]:
    """Draw the gaps between arrivals as independent callers make them."""
    due_s = randomly.expovariate(rate_per_s)
    while due_s < duration_s:
        yield due_s
        due_s += randomly.expovariate(rate_per_s)


SCHEDULES: dict[str, Schedule] = {"poisson": poisson_arrivals, "constant": constant_arrivals}
