"""Parts of a call side by side: the first failure ends all, and leaves nothing to a collection."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest
import pytest_asyncio

from farrank_calls.errors import DeadlineExceeded
from farrank_server.engine.side_by_side import side_by_side


class Texts:
    """Stands for a call's texts."""


class Part:
    """A part of a call that holds its texts, and fails or is cancelled on request."""

    def __init__(self) -> None:
        self.fails = asyncio.Event()
        self.may_end = asyncio.Event()
        self.has_ended = False

    async def run(self, texts: Texts) -> str:
        try:
            await self.fails.wait()
        except asyncio.CancelledError:
            await self.may_end.wait()
            raise
        finally:
            self.has_ended = True
        # A cycle: the error holds the frame, which holds the error.
        error = DeadlineExceeded("late")
        raise error


@pytest_asyncio.fixture
async def without_collections() -> AsyncIterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_the_results_keep_their_order() -> None:
    async def part(number: int) -> int:
        await asyncio.sleep(0.01 * (3 - number))
        return number

    assert await side_by_side(partial(part, number) for number in range(3)) == [0, 1, 2]


def begun(parts: Sequence[Part]) -> tuple[asyncio.Future[list[str]], weakref.ref[Texts]]:
    texts = Texts()
    return asyncio.ensure_future(side_by_side([partial(part.run, texts) for part in parts])), weakref.ref(
        texts
    )


@pytest.mark.usefixtures("without_collections")
async def test_the_first_failure_ends_all_and_leaves_nothing() -> None:
    parts = Part(), Part()
    parts[1].may_end.set()
    running, texts = begun(parts)
    await asyncio.sleep(0)
    parts[0].fails.set()
    with pytest.raises(DeadlineExceeded, match="late"):
        await running
    assert all(part.has_ended for part in parts)
    del running
    assert texts() is None


@pytest.mark.usefixtures("without_collections")
async def test_a_caller_who_goes_while_the_parts_end_leaves_nothing() -> None:
    parts = Part(), Part()
    running, texts = begun(parts)
    await asyncio.sleep(0)
    parts[0].fails.set()
    while not parts[0].has_ended:  # noqa: ASYNC110  # parts report no end
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert not running.done(), "it waits for the other part"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    del running
    parts[1].may_end.set()
    while not parts[1].has_ended:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert texts() is None


async def test_parts_that_are_cancelled_before_they_begin_are_not_begun() -> None:
    parts = Part(), Part()
    running, _ = begun(parts)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not any(part.has_ended for part in parts)
    gc.collect()
