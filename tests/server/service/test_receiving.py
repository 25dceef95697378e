"""The byte budget of requests in receipt: a total bound, shared by callers, in the order of arrival."""

import asyncio

import pytest

from farrank_calls.errors import Reason, ResourceExhausted
from farrank_calls.fairness.fair_order import Account
from farrank_server.config.schema import LimitsConfig
from farrank_server.metrics import Metrics
from farrank_server.service import receiving
from farrank_server.service.receiving import ReceivingBudget

A, B, C = Account("a"), Account("b"), Account("c")


def budget_of(size: int) -> tuple[ReceivingBudget, Metrics]:
    metrics = Metrics()
    return ReceivingBudget(LimitsConfig(max_receiving_bytes=size), metrics), metrics


def shown(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"farrank_receiving_{name}")


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_caller_gets_half_and_another_finds_room() -> None:
    budget, metrics = budget_of(100)
    rooms = [await budget.enter(A, 10) for _ in range(5)]
    waiting = asyncio.ensure_future(budget.enter(A, 10))
    await settled()
    assert not waiting.done()
    assert (shown(metrics, "bytes"), shown(metrics, "waiting")) == (50, 1)
    # The other caller's request passes the waiting ones.
    with await asyncio.wait_for(budget.enter(B, 30), 30):
        assert shown(metrics, "bytes") == 80
    rooms[0].close()
    await waiting
    assert (shown(metrics, "bytes"), shown(metrics, "waiting")) == (50, 0)


async def test_room_that_a_request_does_not_need_goes_to_those_that_wait() -> None:
    budget, metrics = budget_of(100)
    room = await budget.enter(A, 100)
    second, third = (asyncio.ensure_future(budget.enter(who, 40)) for who in (B, C))
    await settled()
    assert not second.done()
    assert not third.done()
    room.shrink(1)
    await second
    await third
    assert shown(metrics, "bytes") == 81
    room.close()
    room.close()
    assert shown(metrics, "bytes") == 80


async def test_the_caller_with_least_goes_first_and_its_requests_keep_their_order() -> None:
    budget, _ = budget_of(100)
    held, of_b = await budget.enter(A, 60), await budget.enter(B, 40)
    order: list[str] = []

    async def enter(name: str, account: Account) -> None:
        await budget.enter(account, 10)
        order.append(name)

    waiting = []
    for name, account in (("b1", B), ("b2", B), ("c1", C)):
        waiting.append(asyncio.ensure_future(enter(name, account)))
        await settled()
    of_b.shrink(20)
    await settled()
    assert order == ["c1"]
    held.close()
    await asyncio.gather(*waiting)
    assert order == ["c1", "b1", "b2"]


async def test_no_room_in_time_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MAX_WAIT_S", 0.05)
    budget, metrics = budget_of(100)
    room = await budget.enter(A, 1000)
    with pytest.raises(ResourceExhausted, match="requests in receipt hold 100 bytes") as caught:
        await budget.enter(B, 1)
    assert caught.value.reason is Reason.RECEIVING
    assert caught.value.retry_after_ms
    assert (shown(metrics, "bytes"), shown(metrics, "waiting")) == (100, 0)
    room.close()
    with await budget.enter(B, 1):
        pass
    assert shown(metrics, "bytes") == 0


async def test_one_that_goes_while_it_waits_leaves_its_place_to_the_next() -> None:
    budget, metrics = budget_of(100)
    room = await budget.enter(A, 90)
    large, small = asyncio.ensure_future(budget.enter(B, 20)), asyncio.ensure_future(budget.enter(B, 5))
    await settled()
    assert not small.done()
    large.cancel()
    (await small).close()
    # A request that is admitted and cancelled in the same turn of the loop gives its room back.
    both = asyncio.ensure_future(budget.enter(B, 20))
    await settled()
    room.close()
    both.cancel()
    await asyncio.wait((both,))
    assert both.cancelled()
    assert (shown(metrics, "bytes"), shown(metrics, "waiting")) == (0, 0)


async def test_those_that_go_all_at_once_leave_nothing() -> None:
    budget, metrics = budget_of(100)
    room = await budget.enter(A, 90)
    waiting = [asyncio.ensure_future(budget.enter(B, 20)) for _ in range(10)]
    await settled()
    for each in waiting:
        each.cancel()
    room.close()
    await asyncio.wait(waiting)
    assert all(each.cancelled() for each in waiting)
    assert (shown(metrics, "bytes"), shown(metrics, "waiting")) == (0, 0)
    (await budget.enter(B, 20)).close()


async def test_admission_takes_a_request_over() -> None:
    budget, metrics = budget_of(100)
    with await budget.enter(A, 50) as room:
        assert shown(metrics, "bytes") == 50
        room.close()
        assert shown(metrics, "bytes") == 0
    assert shown(metrics, "bytes") == 0


async def test_a_request_may_take_longer_the_larger_it_is() -> None:
    limits = LimitsConfig(min_receiving_bytes_per_s=100)
    budget = ReceivingBudget(limits, Metrics())
    assert (budget.arrival_s(0), budget.arrival_s(1000)) == (10, 20)
