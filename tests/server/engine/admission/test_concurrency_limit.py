import asyncio

import pytest

from farrank_calls.errors import ResourceExhausted, Unavailable
from farrank_server.engine.admission.concurrency_limit import ConcurrencyLimit


async def test_draining_waits_for_those_inside_and_refuses_others() -> None:
    gate = ConcurrencyLimit(max_calls=2)
    release = asyncio.Event()

    async def call() -> str:
        with gate.passing():
            await release.wait()
            return "answered"

    inside = asyncio.create_task(call())
    await asyncio.sleep(0)
    draining = asyncio.create_task(gate.drain(timeout_s=10))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="draining"):
        await call()
    assert not draining.done()
    release.set()
    assert await draining
    assert await inside == "answered"


async def test_draining_gives_up_when_its_time_is_over() -> None:
    gate = ConcurrencyLimit(max_calls=1)
    with gate.passing():
        assert not await gate.drain(timeout_s=0.01)


async def test_a_full_house_refuses_with_a_hint() -> None:
    gate = ConcurrencyLimit(max_calls=1)
    with gate.passing():
        second = gate.passing()
        with pytest.raises(ResourceExhausted, match="max_concurrent_calls") as refused:
            second.__enter__()
    assert refused.value.retry_after_ms
    with gate.passing():
        pass
