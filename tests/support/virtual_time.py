"""Coroutine tests whose event loop does not wait: its clock goes on to the next timer at once.

What they find does not depend on how fast or busy the machine is. Nothing outside the loop may be waited for.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

Arguments = ParamSpec("Arguments")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is `now_s`; a test may add to it as work that blocks the loop would."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        """Return the time in seconds, from 0."""
        return self.now_s


class _Skipping(selectors.SelectSelector):
    """Adds to its loop's time where it would wait."""

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
    """Run a coroutine test on a `VirtualTimeLoop` of its own."""

    @functools.wraps(test)
    def run(*positional: Arguments.args, **named: Arguments.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*positional, **named))

    return run
