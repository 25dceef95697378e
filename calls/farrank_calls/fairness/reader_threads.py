"""The tokenizer threads, which serve accounts fairly. A hung thread blocks neither others nor the exit."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from farrank_calls.fairness.fair_order import NOBODY, Account
from farrank_calls.fairness.fair_queue import FairQueue

# A piece of a text takes milliseconds; the slowest ever measured took a tenth of a second. A thread that
# needs this long for one piece does not come back.
HANG_AFTER_S = 30.0

# The interval between two checks.
TICK_S = 1.0

# How long shutdown waits for all threads together. No caller needs their results any more.
STOP_GRACE_S = 1.0

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ReaderTask:
    """A piece of work that waits for a thread."""

    account: Account
    future: Future[Any]
    run: Callable[[], Any]


class ReaderHung(Exception):
    """A thread took far too long for one piece of work and was given up."""


class ReaderThreads(Executor):
    """A pool of daemon threads that take work from one queue, in fair order among accounts.

    An account may be ahead of its share by `quantum_s` seconds of work. Each thread is called `name`.
    `concurrent.futures.ThreadPoolExecutor` cannot replace a thread. It also waits for each of its threads
    when the interpreter exits, so that a hung one would keep the process alive.
    """

    def __init__(self, threads: int, quantum_s: float, name: str = "farrank-reader") -> None:
        self._queue = _ThreadsQueue(quantum_s)
        self._name = name
        self._readers = [_Reader(self._queue, name) for _ in range(threads)]
        self._hung: list[_Reader] = []
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function that belongs to no account. Raises: as `submit_for`."""
        return self.submit_for(NOBODY, lambda: fn(*args, **kwargs))

    def submit_for(self, account: Account, run: Callable[[], T]) -> Future[T]:
        """Run a function for an account, after the functions submitted for it before.

        Raises: RuntimeError after `shutdown`.
        """
        if self._is_shut:
            raise RuntimeError("the reader threads have been shut down")
        future: Future[T] = Future()
        self._queue.put(ReaderTask(account, future, run))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after all submitted work, or with `cancel_futures` after the work that is running.

        With `wait`, threads that have not ended after `STOP_GRACE_S` are left running.
        """
        self._is_shut = True
        for left in self._queue.end(drop=cancel_futures):
            left.future.cancel()
        end_s = time.monotonic() + STOP_GRACE_S
        for reader in self._readers if wait else ():
            reader.thread.join(max(0.0, end_s - time.monotonic()))

    @property
    def hung(self) -> int:
        """The number of threads that were given up and are still running."""
        self._hung = [reader for reader in self._hung if reader.thread.is_alive()]
        return len(self._hung)

    def give_up_hung(self, elapsed_s: float) -> int:
        """Replace the hung threads and fail their work. Returns how many threads hung.

        `elapsed_s` is the time since the last call. At most two ticks of it count: after a suspension of the
        process no thread has hung.
        """
        hung = [reader for reader in self._readers if reader.is_hung_after(min(elapsed_s, 2 * TICK_S))]
        for reader in hung:
            self._readers.remove(reader)
            self._hung.append(reader)
            self._readers.append(_Reader(self._queue, self._name))
            reader.give_up()
        return len(hung)


class _ThreadsQueue:
    """A `FairQueue` on which threads block until there is work."""

    def __init__(self, quantum_s: float) -> None:
        self._changed = threading.Condition()
        self._waiting: FairQueue[ReaderTask] = FairQueue(quantum_s)
        self._has_ended = False

    def put(self, work: ReaderTask) -> None:
        """Add work for a thread."""
        with self._changed:
            self._waiting.put(work.account, work)
            self._changed.notify()

    def get(self) -> ReaderTask | None:
        """Wait for the next work and take it. Returns None when no more will come."""
        with self._changed:
            while not self._waiting:
                if self._has_ended:
                    return None
                self._changed.wait()
            return self._waiting.take()[1]

    def done(self, work: ReaderTask, seconds: float) -> None:
        """Record that work taken from the queue is done, and how long it took."""
        with self._changed:
            self._waiting.done(work.account, seconds)

    def end(self, *, drop: bool) -> list[ReaderTask]:
        """Let threads end once the queue is empty. With `drop`, empty it now and return the dropped work."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
            return self._waiting.clear() if drop else []


class _Reader:
    """A thread, its current work, and how long the checks have seen it at that work."""

    def __init__(self, queue: _ThreadsQueue, name: str) -> None:
        self._queue = queue
        self._at: ReaderTask | None = None
        self._seen_at: ReaderTask | None = None
        self._seen_s = 0.0
        self._given_up = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def is_hung_after(self, elapsed_s: float) -> bool:
        """Check the thread's current work. Returns whether the thread hangs."""
        at = self._at
        if at is None or at is not self._seen_at:
            self._seen_at, self._seen_s = at, 0.0
            return False
        self._seen_s += elapsed_s
        return self._seen_s > HANG_AFTER_S

    def give_up(self) -> None:
        """Fail the current work. The thread ends when the work returns."""
        self._given_up = True
        if self._seen_at is not None:
            with suppress(InvalidStateError):
                self._seen_at.future.set_exception(
                    ReaderHung(f"a tokenizer thread has worked on one piece of text for {self._seen_s:.0f} s")
                )
            self._seen_at = None

    def _run(self) -> None:
        while not self._given_up and (work := self._queue.get()) is not None:
            self._at = work
            started_s = perf_counter()
            _complete(work.future, work.run)
            self._queue.done(work, perf_counter() - started_s)
            # Keep no reference to a call while the thread waits for the next one.
            self._at = None
            del work


def _complete(future: Future[Any], run: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    # `give_up` may have failed the future meanwhile.
    with suppress(InvalidStateError):
        try:
            result = run()
        except BaseException as error:
            future.set_exception(error)
            # Otherwise the error holds this frame, the frame the future, and the future the error.
            del future
        else:
            future.set_result(result)
