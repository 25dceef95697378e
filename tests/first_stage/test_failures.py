"""The errors of searches that fail, which leave nothing behind."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from farrank_calls.errors import (
    DeadlineExceeded,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from farrank_calls.fairness.fair_order import Account
from farrank_calls.telemetry.call_record import CallRecord
from farrank_first_stage import Candidate
from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import FirstStages, open_first_stages
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

TIMEOUT_S = 60.0
GREEDY, MODEST = Account("greedy"), Account("modest")


def process_is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


async def search_once_it_is_back(stage: FirstStages) -> list[Candidate]:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await stage.search("toy", "alpha", 10, TIMEOUT_S)
            except Unavailable:
                await asyncio.sleep(0.05)


async def test_an_unknown_index_lists_the_known(stage: FirstStages) -> None:
    with pytest.raises(NotFound, match=r"'nope' here; known are: toy, toy-other-parameters, odd, odd-rm3"):
        await stage.search("nope", "alpha", 10, TIMEOUT_S)


async def test_many_searches_at_once_get_their_own_answers(stage: FirstStages) -> None:
    queries = ["alpha", "omega", "sigma", "gamma delta"]
    alone = [await stage.search("toy", query, 10, TIMEOUT_S) for query in queries]
    together = await asyncio.gather(*(stage.search("toy", query, 10, TIMEOUT_S) for query in queries * 25))
    assert together == alone * 25
    assert stage.searches_in_flight == 0


async def test_a_late_answer_is_dropped_and_the_next_one_is_right(stage: FirstStages) -> None:
    assert stage.lucene.process_id is not None
    os.kill(stage.lucene.process_id, signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceeded, match=r"within 0\.100 s"):
            await stage.search("toy", "alpha", 10, 0.1)
        with pytest.raises(DeadlineExceeded):
            await stage.search("toy", "alpha", 10, -1.0)
        cancelled = asyncio.create_task(stage.search("toy", "alpha", 10, TIMEOUT_S))
        await asyncio.sleep(0.05)
        assert stage.searches_in_flight == 1
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert stage.searches_in_flight == 0
    finally:
        os.kill(stage.lucene.process_id, signal.SIGCONT)
    [found] = await stage.search("toy", "sigma", 10, TIMEOUT_S)
    assert found.doc_id == "other"


async def test_pending_searches_are_bounded_and_refusals_say_when_to_retry(
    toy_index: Path,
) -> None:
    config = FirstStageConfig(indexes={"toy": Bm25Config(toy_index)}, max_searches=3)
    stage = open_first_stages(config)
    await stage.start()
    try:
        assert stage.lucene.process_id is not None
        os.kill(stage.lucene.process_id, signal.SIGSTOP)
        waiting = [asyncio.create_task(stage.search("toy", "alpha", 10, TIMEOUT_S)) for _ in range(3)]
        await asyncio.sleep(0)  # each has reached its first wait
        assert stage.searches_in_flight == 3
        with pytest.raises(ResourceExhausted, match="max_searches is 3") as refused:
            await stage.search("toy", "alpha", 10, TIMEOUT_S)
        assert refused.value.reason == "first_stage_full"
        assert refused.value.retry_after_ms
        os.kill(stage.lucene.process_id, signal.SIGCONT)
        assert all(await asyncio.gather(*waiting))
        assert await stage.search("toy", "alpha", 10, TIMEOUT_S)
    finally:
        await stage.stop()


async def test_searches_that_wait_are_shared_by_caller(toy_index: Path) -> None:
    config = FirstStageConfig(indexes={"toy": Bm25Config(toy_index)}, max_searches=32)
    stage = open_first_stages(config)
    await stage.start()
    try:
        assert stage.lucene.process_id is not None
        os.kill(stage.lucene.process_id, signal.SIGSTOP)

        def search(account: Account) -> asyncio.Task[list[Candidate]]:
            return asyncio.create_task(
                stage.search("toy", "alpha", 10, TIMEOUT_S, call=CallRecord("", account=account))
            )

        waiting = [search(GREEDY) for _ in range(30)]
        await asyncio.sleep(0)  # each has reached its first wait
        with pytest.raises(ResourceExhausted, match="30 searches of this caller wait already") as refused:
            await search(GREEDY)
        assert refused.value.reason == "share"
        assert refused.value.retry_after_ms
        modest = search(MODEST)
        os.kill(stage.lucene.process_id, signal.SIGCONT)
        assert await modest
        assert all(await asyncio.gather(*waiting))
    finally:
        await stage.stop()


async def test_a_callers_search_does_not_wait_behind_all_of_another(toy_index: Path) -> None:
    stage = open_first_stages(FirstStageConfig(indexes={"toy": Bm25Config(toy_index)}, search_threads=1))
    await stage.start()
    try:
        assert stage.lucene.process_id is not None
        # As long as the process is stopped, its slots are occupied, and their time is charged.
        os.kill(stage.lucene.process_id, signal.SIGSTOP)
        answered: list[Account] = []

        async def search(account: Account) -> None:
            assert await stage.search("toy", "alpha", 10, TIMEOUT_S, call=CallRecord("", account=account))
            answered.append(account)

        waiting = [asyncio.create_task(search(GREEDY)) for _ in range(60)]
        await until(lambda: stage.lucene.requests_in_flight == 60)
        waiting.append(asyncio.create_task(search(MODEST)))
        await until(lambda: stage.lucene.requests_in_flight == 61)
        os.kill(stage.lucene.process_id, signal.SIGCONT)
        await asyncio.gather(*waiting)
        # In the order of arrival it would have been the last.
        assert answered.index(MODEST) < 30
    finally:
        await stage.stop()


async def test_a_search_that_is_given_up_keeps_its_slot_until_its_thread_is_free(toy_index: Path) -> None:
    stage = open_first_stages(FirstStageConfig(indexes={"toy": Bm25Config(toy_index)}, search_threads=1))
    await stage.start()
    try:
        process: Any = stage.lucene._process
        os.kill(process.pid, signal.SIGSTOP)

        def search() -> asyncio.Task[list[Candidate]]:
            return asyncio.create_task(stage.search("toy", "alpha", 10, TIMEOUT_S))

        given_up = [search() for _ in range(2)]
        await until(lambda: len(process._pending) == 2 and not process._unwritten)
        for each in given_up:
            each.cancel()
        await asyncio.wait(given_up)
        waiting = search()
        await until(lambda: stage.lucene.requests_in_flight == 1)
        assert not process._pending
        os.kill(process.pid, signal.SIGCONT)
        assert await waiting
        # No slot is occupied any more.
        await until(lambda: not process._give_back)
        assert all(await asyncio.gather(*(search() for _ in range(8))))
    finally:
        await stage.stop()


async def test_signals_to_the_group_leave_the_search_process_running(stage: FirstStages) -> None:
    assert stage.lucene.process_id is not None
    os.kill(stage.lucene.process_id, signal.SIGINT)
    os.kill(stage.lucene.process_id, signal.SIGTERM)
    await asyncio.sleep(0.1)
    assert await stage.search("toy", "alpha", 10, TIMEOUT_S)


async def test_a_dead_search_process_fails_its_searches_and_is_replaced(toy_index: Path) -> None:
    stage = open_first_stages(FirstStageConfig(indexes={"toy": Bm25Config(toy_index)}))
    await stage.start()
    try:
        first_pid = stage.lucene.process_id
        assert first_pid is not None
        before = await stage.search("toy", "alpha", 10, TIMEOUT_S)
        os.kill(first_pid, signal.SIGSTOP)
        pending = asyncio.create_task(stage.search("toy", "alpha", 10, TIMEOUT_S))
        await asyncio.sleep(0.05)
        os.kill(first_pid, signal.SIGKILL)
        with pytest.raises(Unavailable) as caught:
            await pending
        assert caught.value.retry_after_ms
        with pytest.raises(Unavailable):
            await stage.search("toy", "alpha", 10, TIMEOUT_S)
        assert await search_once_it_is_back(stage) == before
        second_pid = stage.lucene.process_id
        assert second_pid not in (None, first_pid)
        assert second_pid is not None
        os.kill(second_pid, signal.SIGSTOP)  # it cannot react to the closed pipe, and is killed
        pending = asyncio.create_task(stage.search("toy", "alpha", 10, TIMEOUT_S))
        await asyncio.sleep(0.05)
    finally:
        await stage.stop()
    with pytest.raises(Unavailable):
        await pending
    assert process_is_gone(second_pid)
