"""Loops against servers made of coroutines: the waits, and the counts."""

import asyncio
import itertools
from collections import Counter

import pytest

from farrank_loadtest.loops import (
    NOT_SENT,
    OK,
    PAUSE_AFTER_FAILURE_S,
    Sample,
    run_closed,
    run_open,
    started_clock,
)
from farrank_loadtest.targets import Answer, CandidateDocument, TargetError
from farrank_loadtest.workloads import Call
from support.virtual_time import VirtualTimeLoop, in_virtual_time

CALLS = tuple(Call(f"q{n}", (CandidateDocument("d", "text"),)) for n in range(3))


@in_virtual_time
async def test_an_open_loop_sends_on_time_and_counts_from_the_intended_arrival_when_the_server_stalls() -> (
    None
):
    """One call blocks the others for 0.5 s, as behind a lock. No late sender hides any of that."""
    lock, stalled = asyncio.Lock(), itertools.count()

    async def ask(call: Call) -> Answer:
        async with lock:
            await asyncio.sleep(0.5 if next(stalled) == 0 else 0.001)
        return Answer((1.0,), {"queue": 0.25})

    samples: list[Sample] = []
    arrivals = [n * 0.05 for n in range(10)]
    await run_open(ask, itertools.cycle(CALLS), arrivals, samples.append, started_clock(), max_in_flight=100)

    assert [sample.due_s for sample in samples] == arrivals
    assert max(sample.lag_s for sample in samples) < 0.01, "a sender that waits for the first answer has 0.45"
    for sample in samples:
        assert sample.latency_s == pytest.approx(sample.done_s - sample.due_s)
        assert sample.done_s >= 0.5
        assert sample.stages_s == {"queue": 0.25}


@in_virtual_time
async def test_latency_counts_from_the_intended_arrival_when_the_generator_itself_is_late() -> None:
    async def ask(call: Call) -> Answer:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.now_s += 0.1  # nothing else runs in the meantime
        return Answer((1.0,))

    samples: list[Sample] = []
    arrivals = [0.0, 0.01, 0.02]
    await run_open(ask, itertools.cycle(CALLS), arrivals, samples.append, started_clock(), max_in_flight=9)

    assert samples[1].lag_s > 0.08
    assert samples[2].lag_s > 0.17
    for sample in samples:
        assert sample.latency_s >= sample.lag_s + 0.1


@in_virtual_time
async def test_calls_beyond_the_limit_in_flight_are_counted_and_not_sent() -> None:
    sent, others_counted = [], asyncio.Event()

    async def ask(call: Call) -> Answer:
        sent.append(call.query)
        await others_counted.wait()
        return Answer((1.0,))

    samples: list[Sample] = []

    def count(sample: Sample) -> None:
        samples.append(sample)
        if len(samples) == 6:
            others_counted.set()

    arrivals = [n * 0.001 for n in range(10)]
    async with asyncio.timeout(60):
        await run_open(ask, itertools.cycle(CALLS), arrivals, count, started_clock(), max_in_flight=4)

    assert sent == ["q0", "q1", "q2", "q0"]
    assert Counter(sample.status for sample in samples) == {OK: 4, NOT_SENT: 6}


@in_virtual_time
async def test_cancelling_an_open_loop_cancels_the_calls_in_flight_and_keeps_the_others() -> None:
    cancelled = 0

    async def ask(call: Call) -> Answer:
        nonlocal cancelled
        try:
            await asyncio.sleep(0.01 if call.query == "q0" else 60)
        except asyncio.CancelledError:
            cancelled += 1
            raise
        return Answer((1.0,))

    samples: list[Sample] = []
    loop = asyncio.create_task(
        run_open(ask, iter(CALLS), [0.0, 0.0, 0.0, 50.0], samples.append, started_clock(), max_in_flight=9)
    )
    await asyncio.sleep(0.1)
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop
    assert [sample.status for sample in samples] == [OK]
    assert cancelled == 2


@in_virtual_time
async def test_a_closed_loop_never_has_more_calls_out_than_callers_and_ends_in_time() -> None:
    out = most = 0

    async def ask(call: Call) -> Answer:
        nonlocal out, most
        out += 1
        most = max(most, out)
        await asyncio.sleep(0.01)
        out -= 1
        return Answer((1.0,))

    samples: list[Sample] = []
    now_s = started_clock()
    await run_closed(ask, itertools.cycle(CALLS), 3, 0.5, samples.append, now_s, max_calls=1000)

    assert most == 3
    assert 0.5 <= now_s() < 0.55
    assert 147 <= len(samples) <= 156


@in_virtual_time
async def test_a_closed_loop_stops_at_its_calls_and_does_not_hammer_a_server_that_refuses() -> None:
    async def refuse(call: Call) -> Answer:
        raise TargetError("HTTP 429", "full")

    samples: list[Sample] = []
    await run_closed(refuse, itertools.cycle(CALLS), 2, 0.35, samples.append, started_clock(), max_calls=1000)
    assert {sample.status for sample in samples} == {"HTTP 429"}
    assert len(samples) <= 2 * (0.35 / PAUSE_AFTER_FAILURE_S + 1)

    samples.clear()
    await run_closed(refuse, itertools.cycle(CALLS), 2, 60.0, samples.append, started_clock(), max_calls=3)
    assert len(samples) == 3
