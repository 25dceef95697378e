"""The open loop: calls go out when they are due, whether or not earlier ones are answered."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from farrank_loadtest.load.sample import NOT_SENT, Ask, Sample, Sink
from farrank_loadtest.load.sending import send
from farrank_loadtest.workloads.call import Call


async def run_open(
    ask: Ask,
    calls: Iterator[Call],
    arrivals: Iterable[float],
    sink: Sink,
    now_s: Callable[[], float],
    *,
    max_in_flight: int,
) -> None:
    """Send a call at each arrival, then wait for the answers that are still out.

    Beyond `max_in_flight` unanswered calls one that is due is not sent, and counted as such: a server that
    stalls must not fill the memory of this process. Cancelling ends the calls in flight, uncounted.
    """
    in_flight = 0

    async def fly(call: Call, due_s: float) -> None:
        nonlocal in_flight
        sample = await send(ask, call, due_s, now_s)
        in_flight -= 1
        sink(sample)

    async with asyncio.TaskGroup() as group:
        for due_s in arrivals:
            # Also where it is late already: what waits to be read must be read.
            await asyncio.sleep(max(0.0, due_s - now_s()))
            if in_flight >= max_in_flight:
                sink(Sample(due_s, due_s, due_s, NOT_SENT, {}))
                continue
            in_flight += 1
            group.create_task(fly(next(calls), due_s))
