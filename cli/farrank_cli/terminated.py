"""Let SIGTERM end a command the way Ctrl-C does: what was done is kept, what was started is ended."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(slots=True)
class Interrupts:
    """Remembers that the command was told to end: what a library's C++ calls may drop the exception."""

    came: bool = False
    _held: bool = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        again, self.came = self.came, True
        if again or not self._held:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only remember a first signal until left: the work asks for `came`, and ends where nothing is lost.

        A second one ends it at once.
        """
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def raise_swallowed(self) -> None:
        """Raise KeyboardInterrupt if one was raised before and did not end the command."""
        if self.came:
            raise KeyboardInterrupt


@contextmanager
def sigterm_interrupts() -> Iterator[Interrupts]:
    """Raise KeyboardInterrupt on SIGTERM until left, and remember it, and Ctrl-C's.

    Whatever fails after an interrupt may have failed because of it, and is one, too.
    """
    interrupts = Interrupts()
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
    """Run it to its end; of a signal it hears as a cancelled task.

    Asked by the loop's own handler, since a shell's background job may ignore Ctrl-C, and SIGTERM must reach
    it all the same.
    Raises: KeyboardInterrupt if it was told to end and kept nothing to return.
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
