"""Let SIGTERM end a command like Ctrl-C: results are kept, started processes are ended."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(slots=True)
class PendingInterrupt:
    """Remembers an interrupt: Python code called from a library's C++ may lose the exception."""

    came: bool = False
    _held: bool = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        again, self.came = self.came, True
        if again or not self._held:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block only remember a first signal; the work polls `came` and ends without loss.

        A second signal ends it at once.
        """
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def raise_swallowed(self) -> None:
        """Raise KeyboardInterrupt if an earlier one did not end the command."""
        if self.came:
            raise KeyboardInterrupt


@contextmanager
def sigterm_interrupts() -> Iterator[PendingInterrupt]:
    """Within the block raise KeyboardInterrupt on SIGTERM, and remember it and Ctrl-C.

    An exception after an interrupt may be its consequence, and becomes KeyboardInterrupt, too.
    """
    interrupts = PendingInterrupt()
    before = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it
        before[signal.SIGINT] = signal.default_int_handler
    for number in before:
        signal.signal(number, interrupts.receive)
    try:
        yield interrupts
    except Exception as error:
        if interrupts.came:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_interruptible(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end; SIGTERM cancels its task.

    The loop handles SIGTERM itself, because asyncio handles only Ctrl-C, which a shell's background job may
    ignore.
    Raises: KeyboardInterrupt if it was interrupted and returned no result.
    """

    async def cancellable() -> Result:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
