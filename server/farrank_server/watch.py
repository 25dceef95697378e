"""Watches files, and asks for a reload when they have changed."""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

log = logging.getLogger(__name__)

# The interval between two looks. A look at a folder takes less than a millisecond on a local disk.
WATCH_S = 2.0


async def watch(look: Callable[[], object], on_change: Callable[[], None]) -> NoReturn:
    """Call `on_change` once after each change of what `look` returns, when it has stood still for one look.

    Files that are being copied are not read half-written. A change that turns out to be wrong is not tried
    again until the next one. `look` runs on another thread, because a disk may be slow. Until cancelled.
    """
    acted = before = await asyncio.to_thread(look)
    while True:
        await asyncio.sleep(WATCH_S)
        now = await asyncio.to_thread(look)
        if now == before and now != acted:
            acted = now
            log.info("the configuration or the files of a ranker have changed; reloading")
            on_change()
        before = now
