"""A search process that ends is started again, however often that fails and for whatever reason."""

import asyncio
from typing import Any

import pytest

from farrank_first_stage import lucene_host
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.lucene_host import LuceneHost, SearchState, restart_delay_s


class Child:
    """A search process that ends on request."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.stopped = False
        self.ends_as = SearchState.ENDED
        self.opened: dict[str, Any] = {}

    async def ended(self) -> int:
        await self.end.wait()
        return 1

    async def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("error", [ValueError, OSError, RuntimeError, TypeError])
async def test_a_start_may_fail_more_than_a_thousand_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[Exception]
) -> None:
    monkeypatch.setattr(lucene_host, "_LONGEST_DELAY_S", 0.0)
    failures = 1100  # 0.25 * 2**1024 is too large for a float
    attempts = 0
    children: asyncio.Queue[Child] = asyncio.Queue()

    async def start(*arguments: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts <= failures:
            raise error("no memory for a JVM")
        child = Child()
        children.put_nowait(child)
        return child

    monkeypatch.setattr(lucene_host.SearchProcess, "open", start)
    host, first = LuceneHost(FirstStageConfig()), Child()
    keeping: Any = host._keep_running(first)  # type: ignore[arg-type]  # all it asks of it is `ended`
    host._keeping = asyncio.create_task(keeping)
    first.end.set()
    second = await asyncio.wait_for(children.get(), 60)
    assert attempts == failures + 1
    assert "the search process does not start: no memory for a JVM" in caplog.text
    second.end.set()
    third = await asyncio.wait_for(children.get(), 60)
    await asyncio.sleep(0)
    await host.stop()
    assert third.stopped


def test_delays_grow_to_half_a_minute() -> None:
    delays = [restart_delay_s(failures) for failures in range(10_000)]
    assert delays[:4] == [0.25, 0.5, 1.0, 2.0]
    assert delays == sorted(delays)
    assert delays[-1] == 30.0
