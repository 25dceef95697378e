"""Wait for a state that is reached soon."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Told = TypeVar("Told")


async def until(holds: Callable[[], bool], timeout_s: float = 120.0) -> None:
    async with asyncio.timeout(timeout_s):
        # There is no event to wait for: the state is read from metrics.
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def when(
    asked: Callable[[], Told],
    holds: Callable[[Told], bool],
    timeout_s: float = 120.0,
    pause_s: float = 0.1,
) -> Told:
    """Ask repeatedly until the answer holds, where no event loop runs."""
    end_s = time.monotonic() + timeout_s
    while not holds(told := asked()):
        assert time.monotonic() < end_s, told
        time.sleep(pause_s)
    return told
