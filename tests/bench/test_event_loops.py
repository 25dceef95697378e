"""The reported delays of the event loop are the real ones, and admissions are timed one by one."""

import asyncio
import os
import threading
import time

from farrank_bench.event_loops import ADMISSIONS, Heartbeat, admissions_ms, pin


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


def test_threads_that_are_there_already_are_pinned_too() -> None:
    cores, done = os.sched_getaffinity(0), threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id is not None
    try:
        pin({min(cores)})
        assert os.sched_getaffinity(thread.native_id) == os.sched_getaffinity(0) == {min(cores)}
    finally:
        pin(cores)
        done.set()
        thread.join()
    assert os.sched_getaffinity(0) == cores
