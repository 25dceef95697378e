"""The closed loop: so many callers, each sending its next call when it has its answer."""

import asyncio
from collections.abc import Callable, Iterator

from farrank_loadtest.load.sample import Ask, Sink
from farrank_loadtest.load.sending import send
from farrank_loadtest.workloads.call import Call

# A caller that is refused at once would otherwise ask again thousands of times a second.
PAUSE_AFTER_FAILURE_S = 0.1


async def run_closed(
    ask: Ask,
    calls: Iterator[Call],
    callers: int,
    duration_s: float,
    sink: Sink,
    now_s: Callable[[], float],
    *,
    max_calls: int,
) -> None:
    """Let the callers work for the duration, or until `max_calls` are sent; answers still out are awaited.

    Cancelling ends the calls in flight, uncounted.
    """
    left = max_calls

    async def caller() -> None:
        nonlocal left
        while now_s() < duration_s and left > 0:
            left -= 1
            sample = await send(ask, next(calls), now_s(), now_s)
            sink(sample)
            if not sample.is_ok:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller())
