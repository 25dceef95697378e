"""Watches files, and asks for a reload when they have changed."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from farrank_server.config.schema import ServerConfig
from farrank_server.service.rankers import sources
from farrank_settings.errors import ConfigError

log = logging.getLogger(__name__)

# The interval between two looks. A look at a folder takes less than a millisecond on a local disk.
WATCH_S = 2.0


class Watched:
    """The state of the configuration's file and of the files of its rankers: a call returns it.

    `look` returns another value after each change of the configuration's file; `reread` reads it. A
    configuration that cannot be read is a change of its file only. Calls may wait for files.
    """

    def __init__(self, look: Callable[[], object], reread: Callable[[], ServerConfig]) -> None:
        self._look, self._reread = look, reread
        self._file = look()
        self._rankers = reread().rankers

    def __call__(self) -> object:
        """Note the state, which differs after each change."""
        # The rankers are those of the file that was looked at, not those that serve: a reload that gives the
        # replica other rankers would otherwise seem to be a change.
        if (file := self._look()) != self._file:
            self._file = file
            with suppress(ConfigError):
                self._rankers = self._reread().rankers
        return file, sources(self._rankers)


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
