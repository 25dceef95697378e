"""Slots of a stage go to the pending accounts in the fair order, and none is lost."""

import asyncio
from collections.abc import Callable

import pytest

from farrank_calls.fairness import fair_queue
from farrank_calls.fairness.fair_order import Account, CallPriority
from farrank_calls.fairness.fair_queue import FairQueue, FairSlots

GREEDY, MODEST = Account("greedy"), Account("modest")
BATCH = Account("greedy", priority=CallPriority.BATCH)


class Clock:
    """A clock that a test advances."""

    s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fair_queue, "monotonic", clock)
    return clock


async def served(slots: FairSlots, clock: Clock, waiting: list[Account]) -> list[Account]:
    """Let accounts wait in this order, with a second's work each. Returns the order of their slots."""
    done: list[Account] = []

    async def work(account: Account) -> None:
        give_back = await slots.take(account)
        done.append(account)
        await asyncio.sleep(0)
        clock.s += 1.0
        give_back()

    await asyncio.gather(*map(work, waiting))
    return done


async def test_an_account_beyond_its_share_waits_for_the_others(clock: Clock) -> None:
    done = await served(FairSlots(1, 0.1), clock, [GREEDY] * 6 + [MODEST] * 2)
    assert done[:4] == [GREEDY, MODEST, GREEDY, MODEST]
    assert done[4:] == [GREEDY] * 4


async def test_within_a_quantum_they_go_as_they_came(clock: Clock) -> None:
    waiting = [GREEDY, GREEDY, MODEST, GREEDY, MODEST]
    assert await served(FairSlots(1, 10.0), clock, waiting) == waiting


async def test_work_that_can_wait_has_a_small_part(clock: Clock) -> None:
    done = await served(FairSlots(1, 0.1), clock, [BATCH] * 3 + [MODEST] * 4)
    # The first found a free slot, which was more than the share of batch work while others wait.
    assert done == [BATCH, *[MODEST] * 4, BATCH, BATCH]


async def test_no_more_than_there_are_slots_have_one(clock: Clock) -> None:
    slots, held = FairSlots(2, 0.1), list[Callable[[], None]]()

    async def hold() -> None:
        held.append(await slots.take(GREEDY))

    tasks = [asyncio.create_task(hold()) for _ in range(5)]
    for expected in (2, 3, 4, 5):
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(held) == expected
        # A slot that is given back twice counts once.
        held[expected - 2]()
        held[expected - 2]()
    held[-1]()
    await asyncio.gather(*tasks)
    # Both slots are free again.
    for _ in range(2):
        await asyncio.wait_for(slots.take(MODEST), 60)


@pytest.mark.parametrize("was_handed_over", [False, True])
async def test_a_cancelled_wait_leaves_the_slot_to_the_next(was_handed_over: bool) -> None:
    slots = FairSlots(1, 0.1)
    give_back = await slots.take(GREEDY)
    left, stays = (asyncio.create_task(slots.take(each)) for each in (GREEDY, MODEST))
    await asyncio.sleep(0)
    if was_handed_over:
        give_back()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    give_back()
    (await asyncio.wait_for(stays, 60))()
    await asyncio.wait_for(slots.take(GREEDY), 60)


async def test_a_slot_that_comes_back_as_somebody_gives_up_goes_to_the_next() -> None:
    slots = FairSlots(1, 0.1)
    give_back = await slots.take(GREEDY)
    left, stays = (asyncio.create_task(slots.take(each)) for each in (GREEDY, MODEST))
    await asyncio.sleep(0)
    # The task has not run since it was cancelled.
    left.cancel()
    give_back()
    with pytest.raises(asyncio.CancelledError):
        await left
    (await asyncio.wait_for(stays, 60))()
    await asyncio.wait_for(slots.take(GREEDY), 60)


def test_cleared_and_removed_waits_leave_no_account_behind() -> None:
    queue: FairQueue[str] = FairQueue(0.1)
    for work in ("a", "b", "c"):
        queue.put(GREEDY, work)
    queue.put(MODEST, "d")
    queue.remove(GREEDY, "b")
    assert [queue.take()[1] for _ in range(2)] == ["a", "c"]
    queue.done(GREEDY, 1.0)
    queue.done(GREEDY, 1.0)
    assert queue.clear() == ["d"]
    assert not queue
    assert not queue._order.shares[CallPriority.INTERACTIVE].is_wanted
    with pytest.raises(ValueError, match="empty"):
        queue.take()
