"""Several calls at a time, and no more."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Asked = TypeVar("Asked")


async def ask_all(asked: Iterable[Asked], ask: Callable[[Asked], Awaitable[None]], *, in_flight: int) -> None:
    """Ask everything in order, `in_flight` at a time; the first failure cancels the others and is raised."""
    waiting = iter(asked)

    async def keep_asking() -> None:
        for each in waiting:
            await ask(each)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(keep_asking())
    except* Exception as failures:
        raise failures.exceptions[0] from None
