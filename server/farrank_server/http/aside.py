"""Threads for bodies and answers that are too long for the event loop, shared fairly by caller."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from farrank_server.batching.fair_order import Account
from farrank_server.batching.fair_queue import FairSlots
from farrank_server.errors import DeadlineExceeded

Value = TypeVar("Value")

# A body of this size is read within some 10 ms; one of the largest size takes a fifth of a second.
SMALL_BYTES = 2**20

# How far a caller may be ahead of its share of a thread before others go first, in seconds of work.
QUANTUM_S = 0.02


class Aside:
    """One thread for what has at most `SMALL_BYTES`, and one for what is larger.

    The work holds the interpreter's lock: more threads would not make it faster. With two, what is small
    never waits for what is large. Belongs to the event loop.
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
        """Do a caller's work on `size` bytes when its turn has come; return its result.

        Raises: DeadlineExceeded if its turn has not come by `deadline_s`, a time of the loop's clock; what
        `work` raises.
        """
        slots = self._small if size <= SMALL_BYTES else self._large
        try:
            async with asyncio.timeout_at(deadline_s):
                give_back = await slots.take(account)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the request was read") from None
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        working.add_done_callback(lambda _: give_back())
        # A thread cannot be stopped in its work: that keeps its turn when nobody waits for it any more.
        return await asyncio.shield(working)
