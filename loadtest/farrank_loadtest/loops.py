"""Sending calls: on a schedule that does not wait (open loop), or by callers that wait (closed loop).

Every call gives a `Sample`, whose latency counts from the time at which the call was due.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from farrank_loadtest.targets import Answer, TargetError
from farrank_loadtest.workloads import Call

OK = "OK"
# Status of a call that was due while too many others were in flight.
NOT_SENT = "not sent: too many in flight"
# Without a pause, a caller that is refused at once would call again thousands of times a second.
PAUSE_AFTER_FAILURE_S = 0.1

# Takes calls a second, the duration in seconds, and a source of randomness.
Schedule = Callable[[float, float, random.Random], Iterator[float]]


def constant_arrivals(rate_per_s: float, duration_s: float, _: random.Random) -> Iterator[float]:
    """Space arrivals evenly, the first one at 0."""
    # A division for each call, so that rounding errors do not add up.
    return (number / rate_per_s for number in range(math.ceil(rate_per_s * duration_s)))


def poisson_arrivals(rate_per_s: float, duration_s: float, randomly: random.Random) -> Iterator[float]:
    """Draw the gaps between arrivals of independent callers."""
    due_s = randomly.expovariate(rate_per_s)
    while due_s < duration_s:
        yield due_s
        due_s += randomly.expovariate(rate_per_s)


SCHEDULES: dict[str, Schedule] = {"poisson": poisson_arrivals, "constant": constant_arrivals}


def started_clock() -> Callable[[], float]:
    """Start a clock of the running event loop; calling it gives the seconds since."""
    now_s = asyncio.get_running_loop().time
    started_s = now_s()
    return lambda: now_s() - started_s


@dataclass(frozen=True, slots=True)
class Sample:
    """One call's times, in seconds from the start of its loop, and its outcome.

    `due_s` is the intended and `sent_s` the actual time of sending. `status` is `OK`, `NOT_SENT` or that of
    the `TargetError`, with its message. `stages_s` and `counts` are the `Answer`'s.
    """

    due_s: float
    sent_s: float
    done_s: float
    status: str
    message: str = ""
    stages_s: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        """Whether it was answered."""
        return self.status == OK

    @property
    def latency_s(self) -> float:
        """The time from the intended arrival to the answer, including a late generator and a full queue."""
        return self.done_s - self.due_s

    @property
    def lag_s(self) -> float:
        """The generator's delay in sending."""
        return self.sent_s - self.due_s


Ask = Callable[[Call], Awaitable[Answer]]
Sink = Callable[[Sample], None]


async def send(ask: Ask, call: Call, due_s: float, now_s: Callable[[], float]) -> Sample:
    """Send a call, and record the times; `now_s` counts from the start of the loop."""
    sent_s = now_s()
    try:
        answer = await ask(call)
    except TargetError as error:
        return Sample(due_s, sent_s, now_s(), error.status, error.message)
    return Sample(due_s, sent_s, now_s(), OK, stages_s=answer.stages_s, counts=answer.counts)


async def run_open(
    ask: Ask,
    calls: Iterator[Call],
    arrivals: Iterable[float],
    sink: Sink,
    now_s: Callable[[], float],
    *,
    max_in_flight: int,
) -> None:
    """Send a call at each arrival, then wait for the pending answers.

    While `max_in_flight` calls are in flight, a due call is not sent but counted as `NOT_SENT`: a stalled
    server must not fill the memory of this process. Cancelling ends the calls in flight, uncounted.
    """
    in_flight = 0

    async def fly(call: Call, due_s: float) -> None:
        nonlocal in_flight
        sample = await send(ask, call, due_s, now_s)
        in_flight -= 1
        sink(sample)

    async with asyncio.TaskGroup() as group:
        for due_s in arrivals:
            # Sleep even if it is late, so that the event loop can read pending answers.
            await asyncio.sleep(max(0.0, due_s - now_s()))
            if in_flight >= max_in_flight:
                sink(Sample(due_s, due_s, due_s, NOT_SENT))
                continue
            in_flight += 1
            group.create_task(fly(next(calls), due_s))


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
    """Let the callers work for the duration, or until `max_calls` are sent; then wait for pending answers.

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
