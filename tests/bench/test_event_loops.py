"""The reported delays of the event loop are the real ones, and admissions are timed one by one."""

import asyncio
import time

from farrank_bench.event_loops import ADMISSIONS, Heartbeat, admissions_ms


async def test_a_heartbeat_tells_waiting_from_work() -> None:
    heartbeat = Heartbeat()
    await asyncio.sleep(0.01)
    heartbeat.held()

    time.sleep(0.2)  # noqa: ASYNC251  The loop is held up by something else than its own work.
    await asyncio.sleep(0.01)
    asleep = heartbeat.held()
    assert asleep.latest_ms > 150
    assert asleep.longest_work_ms < 150

    ends_s = time.thread_time() + 0.2
    while time.thread_time() < ends_s:
        pass
    await asyncio.sleep(0.01)
    busy = heartbeat.held()
    assert busy.longest_work_ms > 150
    assert busy.latest_ms > 150
    # A reported delay is forgotten.
    assert heartbeat.held().longest_work_ms < 150


def test_admissions_are_timed_one_by_one_and_given_back() -> None:
    took_ms = admissions_ms(20)
    assert len(took_ms) == ADMISSIONS
    assert min(took_ms) > 0
