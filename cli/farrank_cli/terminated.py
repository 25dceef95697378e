"""Let SIGTERM end a command the way Ctrl-C does: what was done is kept, what was started is ended."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM until left."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
