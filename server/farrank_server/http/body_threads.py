"""Threads for reading and writing long bodies, shared fairly by caller."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from farrank_calls.errors import DeadlineExceeded
from farrank_calls.fairness.fair_order import Account
from farrank_calls.fairness.fair_queue import FairSlots

Value = TypeVar("Value")

# A body of this size is read within about 10 ms; one of the largest size takes about 200 ms.
SMALL_BYTES = 2**20

# Seconds of work by which a caller may exceed its share of a thread before others go first.
QUANTUM_S = 0.02


class BodyThreads:
    """One thread for work on at most `SMALL_BYTES`, and one for larger work.

    The work holds the interpreter's lock, so more threads would not make it faster. With two threads, small
    work never waits for large work. Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._small = FairSlots(1, QUANTUM_S)
        self._large = FairSlots(1, QUANTUM_S)
        self._threads = ThreadPoolExecutor(2, "farrank-http")

    def close(self) -> None:
        """Stop the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(
        self, account: Account, size: int, work: Callable[[], Value], deadline_s: float | None = None
    ) -> Value:
        """Wait for the caller's turn, run its work on `size` bytes, and return the result.

        Raises: DeadlineExceeded if the turn has not come by `deadline_s`, a time of the loop's clock; any
        error of `work`.
        """
        slots = self._small if size <= SMALL_BYTES else self._large
        try:
            async with asyncio.timeout_at(deadline_s):
                give_back = await slots.take(account)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the request was read") from None
        try:
            working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RuntimeError:
            # After `close`.
            give_back()
            raise
        working.add_done_callback(lambda _: give_back())
        # A running thread cannot be stopped: it keeps its slot even if the caller has stopped waiting.
        return await asyncio.shield(working)
