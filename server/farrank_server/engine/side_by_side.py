"""Runs the parts of a call side by side; after a failure no part runs on, and no error holds their texts."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from farrank_runtimes.runtime import forget_locals

T = TypeVar("T")


async def side_by_side(parts: Iterable[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
    """Call functions and await their coroutines side by side. The first one that fails cancels the others.

    Raises: the error of that one, when all have ended; CancelledError at once if it is cancelled twice.
    """
    tasks = [asyncio.ensure_future(_without_locals(part)) for part in parts]
    del parts
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks)
        finally:
            # Break a cycle: an error holds this frame, which would hold the task with the error. The caller
            # may go while the tasks end, so this has a `finally` of its own.
            for task in tasks:
                if task.done() and not task.cancelled():
                    # Read the error, or asyncio logs that it was never retrieved.
                    task.exception()
            del task
            tasks.clear()


async def _without_locals(part: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await a coroutine whose frames hold nothing once it has failed: they lead back to its error.

    A task that is cancelled before it begins would leave a coroutine that nobody awaits, so this makes it.
    """
    running = part()
    del part
    try:
        return await running
    except Exception as error:
        forget_locals(error)
        raise
