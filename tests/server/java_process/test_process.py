"""A child that ends is started again, however often that fails and whatever the reason."""

import asyncio

import pytest

from farrank_server.java_process import process
from farrank_server.java_process.process import keep_running, restart_delay_s


class Child:
    """Ends when it is told to."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def ended(self) -> int:
        await self.end.wait()
        return 1


@pytest.mark.parametrize("error", [ValueError, OSError, RuntimeError, TypeError])
async def test_a_start_may_fail_more_than_a_thousand_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    monkeypatch.setattr(process, "_LONGEST_DELAY_S", 0.0)
    failures = 1100  # 0.25 * 2**1024 is too large for a float
    attempts = 0
    running: asyncio.Queue[Child | None] = asyncio.Queue()

    async def start() -> Child:
        nonlocal attempts
        attempts += 1
        if attempts <= failures:
            raise error("no memory for a JVM")
        return Child()

    first = Child()
    keeping = asyncio.create_task(keep_running(first, start, running.put_nowait, "test process"))
    first.end.set()
    assert await running.get() is None
    second = await asyncio.wait_for(running.get(), 60)
    assert second is not None
    assert attempts == failures + 1
    assert "the test process does not start: no memory for a JVM" in caplog.text
    second.end.set()
    assert await running.get() is None
    assert await running.get() is not None
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping


def test_delays_grow_to_half_a_minute() -> None:
    delays = [restart_delay_s(failures) for failures in range(10_000)]
    assert delays[:4] == [0.25, 0.5, 1.0, 2.0]
    assert delays == sorted(delays)
    assert delays[-1] == 30.0
