"""Coroutine tests whose event loop does not wait: its clock jumps to the next timer.

Their results do not depend on the machine's speed or load. They must not wait for anything outside the loop.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

Arguments = ParamSpec("Arguments")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with time `now_s`. A test may add to it, like work that blocks the loop."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        """Return the time in seconds, from 0."""
        return self.now_s


class _Skipping(selectors.SelectSelector):
    """A selector that advances its loop's time instead of waiting."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self._loop.now_s += timeout
        return ready


def in_virtual_time(
    test: Callable[Arguments, Coroutine[Any, Any, None]],
) -> Callable[Arguments, None]:
    """Run a coroutine test on its own `VirtualTimeLoop`."""

    @functools.wraps(test)
    def run(*positional: Arguments.args, **named: Arguments.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*positional, **named))

    return run
