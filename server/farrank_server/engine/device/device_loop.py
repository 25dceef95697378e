"""The thread that owns the device. It runs the most urgent batch and survives the device's failures."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from enum import StrEnum
from queue import SimpleQueue
from typing import TypeVar

from farrank_calls.errors import DeadlineExceeded, DroppedAt, Reason, Unavailable
from farrank_runtimes.runtime import OutOfMemory, forget_locals
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.device.batch_in_flight import BatchInFlight
from farrank_server.engine.device.batch_results import ANSWER_SENT_S, BatchResults
from farrank_server.engine.device.watchdog import GivenUp, Watchdog
from farrank_server.engine.device.work_queue import DeviceWork, Inbox, WorkQueue
from farrank_server.engine.loaded.ranker import LoadedRanker
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

# How long to wait before each attempt to bring a lost device back.
RELOAD_DELAYS_S = (0.0, 1.0, 3.0)

# A device that was recovered this many times without one successful batch in between is lost.
RELOADS_IN_VAIN = 3

# The number of batches begun behind the running one. With one, the device stays busy while the features of
# the last batch are scored. No urgent call could overtake a second one, and it would run even if its callers
# had gone.
AHEAD = 1

# A busy device takes one turn of the work beside calls after each such time.
TURN_AFTER_S = 0.5

T = TypeVar("T")


class DeviceThread:
    """The one thread that does all work on the device: loading, warming up, running.

    There is one thread because OpenMP keeps a team of threads for every thread that ever ran a parallel
    operation: two teams are twice as many threads as cores. It is a daemon because a thread that hangs in
    native code must not keep the process from ending.
    """

    def __init__(self, name: str = "farrank-device") -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended yet."""
        return self._thread.is_alive()

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """Run a function on the thread after those submitted before."""
        result: Future[T] = Future()

        def work() -> None:
            # Work that has begun can no longer be cancelled, as a server that ends does.
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(function(*arguments))
            except BaseException as error:
                result.set_exception(error)

        self._work.put(work)
        return result

    def shutdown(self, timeout_s: float | None = None) -> None:
        """End the thread after all submitted work. Wait for that at most `timeout_s`."""
        self._work.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


class DeviceState(StrEnum):
    """Whether the device can take calls. Only `supervision.Device` changes it, on the event loop."""

    READY = "ready"
    RELOADING = "reloading"
    LOST = "lost"


class DeviceLoop:
    """Runs the batches of all rankers until it gets a Stop message.

    Everything except `inbox` belongs to the device thread. That thread calls `report` with each new state.
    """

    def __init__(
        self,
        rankers: Sequence[LoadedRanker],
        reservations: Reservations,
        metrics: Metrics,
        watchdog: Watchdog,
        report: "Callable[[DeviceLoop, DeviceState], None]",
    ) -> None:
        self.inbox = Inbox()
        self.work = WorkQueue(rankers)
        self.watchdog = watchdog
        self._report = report
        self._results = BatchResults(self.work, reservations, metrics, watchdog)
        self._reloads_in_vain = 0
        self._in_flight: deque[BatchInFlight] = deque()
        self._turn_s = 0.0

    @property
    def has_succeeded(self) -> bool:
        """Whether any work has succeeded since the rankers were loaded."""
        return self._results.has_succeeded

    def run(self, *, load_first: bool = False) -> None:
        """Serve until a Stop message, until the device is lost, or until another thread has taken over."""
        try:
            if load_first and not self._load_anew():
                return
            while True:
                try:
                    self._serve()
                    return
                except GivenUp:
                    raise
                # No exception in the loop may end the server, not even a native library's SystemExit.
                except BaseException as error:
                    log.exception("the device failed; recovering it")
                    if not self._recover(error):
                        return
        except GivenUp:
            log.warning("a call that hung on the device has come back; another thread has taken over")
            self._in_flight.clear()

    def _serve(self) -> None:
        """Take turns until a Stop message.

        On a device that queues batches, one batch is begun ahead, so that the device never waits for Python.
        """
        work = self.work
        while True:
            idle = not (self._in_flight or work.has_work or work.doubted or work.beside or work.is_stopping)
            self._take_messages(wait=idle)
            if work.leaving:
                self._free_leaving()
            if work.beside and time.monotonic() - self._turn_s > TURN_AFTER_S:
                self._take_turn()
            if not work.is_stopping and self._run_next():
                continue
            if self._in_flight and self._in_flight[0].may_run:
                # Batches of calls that come in meanwhile can begin before this batch is scored.
                self._in_flight[0].wait()
            elif self._in_flight:
                self._finish_to(len(self._in_flight) - 1)
            elif work.is_stopping:
                self._results.count()
                return
            elif work.beside:
                self._take_turn()
            elif work.doubted:
                self._measure(work.doubted.pop())

    # These are separate methods because in the loop above the variables for the last message and turn would
    # keep their calls, with their texts, until the next call comes.
    def _take_messages(self, *, wait: bool) -> None:
        # Counting would hold the interpreter while the event loop wants to send an answer or accept a call.
        if wait and self._results.uncounted and not self.inbox.holds_any(within_s=ANSWER_SENT_S):
            self._results.count()
        with self.watchdog.rest() if wait else nullcontext():
            messages = self.inbox.take(wait=wait)
        for message in messages:
            self.work.apply(message)

    def _free_leaving(self) -> None:
        """Free the rankers that no call uses any more. Raises: DeviceLost."""
        # A batch of abandoned calls may still run.
        self._finish_to(0)
        while self.work.leaving:
            with self.watchdog.step():
                self.work.leaving.pop().release()

    def _run_next(self) -> bool:
        next_work = self._next_work()
        if next_work is None:
            return False
        if next_work.ready:
            self._results.score(next_work.queue, next_work.ready, overlapped=self._may_run)
        if next_work.items:
            self._run(next_work)
        return True

    def _run(self, next_work: DeviceWork) -> None:
        """Begin a batch of any ranker, then finish the batches before it. Raises: DeviceLost."""
        if not next_work.queue.ranker.capabilities.queued:
            # It blocks this thread until it is done, and scores of other calls should not wait for that.
            self._finish_to(0)
        batch = BatchInFlight(next_work.queue, next_work.items, self.watchdog)
        self._in_flight.append(batch)
        # If the batch failed at once, handle that before the next batch.
        self._finish_to(AHEAD if batch.may_run else 0)

    def _finish_to(self, left: int) -> None:
        while len(self._in_flight) > left:
            oldest = self._in_flight.popleft()
            self._results.finish(oldest, overlapped=self._may_run)

    @property
    def _may_run(self) -> bool:
        return any(batch.may_run for batch in self._in_flight)

    def _next_work(self) -> DeviceWork | None:
        """Choose the next turn, and answer the calls that were found past their deadline."""
        next_work, late = self.work.next_work(time.monotonic())
        self.work.publish()
        for call in late:
            message = "the deadline passed while the call was queued"
            call.settle(DeadlineExceeded(message, dropped_at=DroppedAt.QUEUE))
        return next_work

    def _measure(self, ranker: LoadedRanker) -> None:
        """Measure again a ranker's speed that is in doubt. Raises: DeviceLost."""
        before = ranker.speeds.encoding.per_s
        try:
            with self.watchdog.step(ranker.load_s):
                ranker.speeds.encoding.replace(ranker.runtime.warm_up())
        except OutOfMemory as error:
            log.warning("ranker %s: its speed could not be measured: %s", ranker.name, error)
            return
        now = ranker.speeds.encoding.per_s
        log.info("ranker %s: measured again, %.0f tokens/s instead of %.0f", ranker.name, now, before)

    def _take_turn(self) -> None:
        """Run one step of the work beside calls. Its errors are its own: no call depends on it yet."""
        self._turn_s = time.monotonic()
        turns = self.work.beside.popleft()
        if turns.done.cancelled():
            return
        try:
            with self.watchdog.step():
                next(turns.steps)
        except StopIteration:
            turns.end()
        except GivenUp:
            raise
        except BaseException as error:
            forget_locals(error)
            turns.end(error)
        else:
            self.work.beside.append(turns)

    def _recover(self, error: BaseException) -> bool:
        """Answer the calls that have work on the failed device, and load the rankers again.

        Returns False if the device is lost.
        """
        # Report before answering any call, so that a client that retries at once is asked to wait.
        self._report(self, DeviceState.RELOADING)
        self._results.count()
        # The batches in flight and the error's frames hold the old runtimes and their memory on the device.
        self._in_flight.clear()
        forget_locals(error)
        self._reloads_in_vain = 0 if self._results.has_succeeded else self._reloads_in_vain + 1
        self._results.has_succeeded = False
        doomed = list(self.work.started)
        for call in doomed:
            message = f"the device failed ({error}) and is being recovered"
            call.settle(Unavailable(message, reason=Reason.WORKER_DIED, retry_after_ms=1000))
            self.work.forget(call)
        if self._reloads_in_vain >= RELOADS_IN_VAIN:
            log.error("the device was recovered %d times, and nothing succeeded on it", RELOADS_IN_VAIN)
            self._report(self, DeviceState.LOST)
            return False
        return self._load_anew()

    def _load_anew(self) -> bool:
        for delay_s in RELOAD_DELAYS_S:
            time.sleep(delay_s)
            try:
                # Release all old runtimes first, so that the device never holds both.
                rankers = [queue.ranker for queue in self.work.queues.values()]
                for ranker in rankers:
                    with self.watchdog.step():
                        ranker.release()
                for ranker in rankers:
                    with self.watchdog.step(ranker.load_s):
                        ranker.reload()
            except GivenUp:
                raise
            # This includes SystemExit: the callers must get an answer for any error of a library.
            except BaseException as error:
                log.exception("the rankers could not be loaded again")
                forget_locals(error)
            else:
                self._report(self, DeviceState.READY)
                return True
        self._report(self, DeviceState.LOST)
        return False
