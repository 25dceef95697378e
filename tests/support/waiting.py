"""Wait for what comes about on the event loop a moment later."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], bool], timeout_s: float = 120.0) -> None:
    async with asyncio.timeout(timeout_s):
        # There is no event to wait for: it is read off metrics.
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
