"""The threads that read texts, in fair turns. One that hangs keeps neither others nor the process waiting."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from farrank_server.batching.fair_order import NOBODY, Account
from farrank_server.batching.fair_queue import FairQueue
from farrank_server.engine.admission.reservations import READING_QUANTUM_S

# A piece of a text takes milliseconds, the slowest that was ever measured a tenth of a second: a thread that
# is at one for so long does not come back.
HANG_AFTER_S = 30.0

# How often somebody looks.
TICK_S = 1.0

# How long ending waits for all threads together. Nobody waits for what they read any more.
STOP_GRACE_S = 1.0

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A piece of work that waits for a thread."""

    account: Account
    future: Future[Any]
    run: Callable[[], Any]


class ReaderHung(Exception):
    """A thread was at one piece of work for far too long, and was given up."""


class ReaderThreads(Executor):
    """A pool of daemon threads that take work from one queue, in the fair order of those it is done for.

    `concurrent.futures.ThreadPoolExecutor` can neither replace a thread nor let a process end that has a hung
    one: it waits for each of its threads when the interpreter ends.
    """

    def __init__(self, threads: int) -> None:
        self._queue = _ThreadsQueue()
        self._readers = [_Reader(self._queue) for _ in range(threads)]
        self._hung: list[_Reader] = []
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function for nobody in particular. Raises: as `submit_for`."""
        return self.submit_for(NOBODY, lambda: fn(*args, **kwargs))

    def submit_for(self, account: Account, run: Callable[[], T]) -> Future[T]:
        """Run a function for an account, after what was given before for it.

        Raises: RuntimeError after `shutdown`.
        """
        if self._is_shut:
            raise RuntimeError("the reader threads have been shut down")
        future: Future[T] = Future()
        self._queue.put(Work(account, future, run))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after what was given, or after what they are at.

        With `wait`, those that have not ended after `STOP_GRACE_S` are left behind.
        """
        self._is_shut = True
        for left in self._queue.end(drop=cancel_futures):
            left.future.cancel()
        end_s = time.monotonic() + STOP_GRACE_S
        for reader in self._readers if wait else ():
            reader.thread.join(max(0.0, end_s - time.monotonic()))

    @property
    def hung(self) -> int:
        """How many threads were given up and have not come back."""
        self._hung = [reader for reader in self._hung if reader.thread.is_alive()]
        return len(self._hung)

    def give_up_hung(self, elapsed_s: float) -> int:
        """Replace the threads that hang, and fail what they are at; `elapsed_s` since this was asked before.

        A late look counts for at most two: in a process that was suspended nothing hangs. Returns how many
        there were.
        """
        hung = [reader for reader in self._readers if reader.looked_at(min(elapsed_s, 2 * TICK_S))]
        for reader in hung:
            self._readers.remove(reader)
            self._hung.append(reader)
            self._readers.append(_Reader(self._queue))
            reader.give_up()
        return len(hung)


class _ThreadsQueue:
    """A `FairQueue` for threads, which wait at it for work."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: FairQueue[Work] = FairQueue(READING_QUANTUM_S)
        self._has_ended = False

    def put(self, work: Work) -> None:
        """Leave work for a thread."""
        with self._changed:
            self._waiting.put(work.account, work)
            self._changed.notify()

    def get(self) -> Work | None:
        """Wait for work, and take that which goes next; None when no more will come."""
        with self._changed:
            while not self._waiting:
                if self._has_ended:
                    return None
                self._changed.wait()
            return self._waiting.take()[1]

    def done(self, work: Work, seconds: float) -> None:
        """Note that work which was taken is done, and how long it took."""
        with self._changed:
            self._waiting.done(work.account, seconds)

    def end(self, *, drop: bool) -> list[Work]:
        """Let threads end once nothing waits; with `drop`, give back what does."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
            return self._waiting.clear() if drop else []


class _Reader:
    """A thread, what it is at, and for how long somebody has seen it at that."""

    def __init__(self, queue: _ThreadsQueue) -> None:
        self._queue = queue
        self._at: Work | None = None
        self._seen_at: Work | None = None
        self._seen_s = 0.0
        self._given_up = False
        self.thread = threading.Thread(target=self._run, name="farrank-reader", daemon=True)
        self.thread.start()

    def looked_at(self, elapsed_s: float) -> bool:
        """Look what it is at; say whether it hangs."""
        at = self._at
        if at is None or at is not self._seen_at:
            self._seen_at, self._seen_s = at, 0.0
            return False
        self._seen_s += elapsed_s
        return self._seen_s > HANG_AFTER_S

    def give_up(self) -> None:
        """Fail what it is at, and let it end when it comes back."""
        self._given_up = True
        if self._seen_at is not None:
            with suppress(InvalidStateError):
                self._seen_at.future.set_exception(
                    ReaderHung(f"a tokenizer thread was at one piece of a text for {self._seen_s:.0f} s")
                )
            self._seen_at = None

    def _run(self) -> None:
        while not self._given_up and (work := self._queue.get()) is not None:
            self._at = work
            started_s = perf_counter()
            _do(work.future, work.run)
            self._queue.done(work, perf_counter() - started_s)
            # Nothing is kept of a call until the next one comes.
            self._at = None
            del work


def _do(future: Future[Any], run: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    # It may have been failed meanwhile, by who gave its thread up.
    with suppress(InvalidStateError):
        try:
            result = run()
        except BaseException as error:
            future.set_exception(error)
            # Else the error holds this frame, which holds the future, which holds the error.
            del future
        else:
            future.set_result(result)
