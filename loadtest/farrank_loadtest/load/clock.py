"""A clock that counts from its making."""

import time
from collections.abc import Callable


def started_clock() -> Callable[[], float]:
    """Start a clock; calling it gives the seconds since."""
    started_s = time.perf_counter()
    return lambda: time.perf_counter() - started_s
