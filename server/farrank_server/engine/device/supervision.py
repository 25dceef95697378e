"""The device as the event loop sees it: its state, its thread, and the recovery from a hang."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial

from farrank_calls.errors import FarrankError, Reason, Unavailable
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, PendingDocument, QueuedInput
from farrank_server.engine.device.device_loop import RELOADS_IN_VAIN, DeviceLoop, DeviceState, DeviceThread
from farrank_server.engine.device.watchdog import TICK_S, Watchdog
from farrank_server.engine.device.work_queue import (
    Begin,
    Close,
    Enter,
    Inputs,
    InTurns,
    Leave,
    Measure,
    Open,
    QueueState,
    Stop,
)
from farrank_server.engine.loaded.ranker import LoadedRanker
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

# A speed measured within this time is not measured again when it is in doubt.
MEASURED_LATELY_S = 30.0

# How long stopping waits for the batch on the device. Its callers already have an answer. A thread that needs
# longer is left running; it does not keep the process from ending.
STOP_GRACE_S = 1.0

# The reasons of errors for calls that failed because the device failed. The calls themselves are not at
# fault.
TAKEN_WITH_IT = frozenset((Reason.WORKER_DIED, Reason.DEVICE_HUNG))


class Device:
    """Owns the device's state. Belongs to the event loop, except that any thread may call `submit`.

    `thread` is the thread that loaded the rankers. `lost` is set when the device cannot be recovered. The
    functions in `on_change` are called with each new state.
    """

    def __init__(
        self,
        rankers: Sequence[LoadedRanker],
        thread: DeviceThread,
        reservations: Reservations,
        metrics: Metrics,
        hang_after_s: float,
    ) -> None:
        self.state = DeviceState.READY
        self.lost = asyncio.Event()
        self.on_change: list[Callable[[DeviceState], None]] = []
        self._rankers = list(rankers)
        self._reservations = reservations
        self._metrics = metrics
        self._hang_after_s = hang_after_s
        self._event_loop = asyncio.get_running_loop()
        self._open: set[ActiveCall] = set()
        self._coming_back: set[asyncio.Future[None]] = set()
        self._beside: set[InTurns] = set()
        self._hung: DeviceThread | None = None
        self._ends_in_vain = 0
        self._is_stopping = False
        self._thread = thread
        self.loop = self._make_loop()
        self._ended = self._start()
        self._ticked_s = time.monotonic()
        self._timer = self._event_loop.call_later(TICK_S, self._tick)

    @property
    def is_dead_or_hung(self) -> bool:
        """Whether the device is lost, or its thread hangs and no other thread has taken over yet."""
        hangs = self._hung is not None and self._hung.is_alive
        return self.state is DeviceState.LOST or (self.state is DeviceState.RELOADING and hangs)

    def check_ready(self) -> None:
        """Raise if the device cannot run calls now.

        Raises: Unavailable, with a retry hint while the device is being recovered.
        """
        if self.state is not DeviceState.READY:
            raise self._unavailable()

    def open(self, call: ActiveCall) -> None:
        """Enter a call in the order. Raises: as `check_ready`."""
        self.check_ready()
        self._open.add(call)
        # The device thread has nothing to do for the call until some of it is read.
        self.loop.inbox.put(Open(call), wakes=False)

    def submit(
        self, call: ActiveCall, inputs: Sequence[QueuedInput], documents: Sequence[PendingDocument]
    ) -> None:
        """Queue inputs of a call. Those of `documents` that miss no chunk are ready to be scored."""
        self.loop.inbox.put(Inputs(call, time.monotonic(), inputs, documents))
        # Let the device thread run first: no caller waits for the next step of this thread.
        time.sleep(0)

    def begin_round(self, call: ActiveCall, documents: Sequence[int], kept_bytes: int, is_last: bool) -> None:
        """Begin a round of a call, before its inputs are submitted: see `Begin`."""
        self.loop.inbox.put(Begin(call, documents, kept_bytes, is_last), wakes=False)

    def close(self, call: ActiveCall) -> None:
        """Forget a call. Its waiting inputs no longer reach the device."""
        self._open.discard(call)
        # The device thread has already forgotten an answered call. Waking it would delay the answer.
        if not call.is_answered:
            self.loop.inbox.put(Close(call))

    async def wait_until_recovered(self) -> None:
        """Wait while the device is being recovered.

        Raises: Unavailable if the device is lost; the error given to `abandon`.
        """
        while self.state is DeviceState.RELOADING:
            changed = self._event_loop.create_future()
            self._coming_back.add(changed)
            try:
                await changed
            finally:
                self._coming_back.discard(changed)
        self.check_ready()

    def abandon(self, error: FarrankError) -> None:
        """Fail every call with an error, including calls that wait for the device to come back."""
        self._answer_open(error)
        for changed in self._coming_back:
            if not changed.done():
                changed.set_exception(error)

    def enter(self, ranker: LoadedRanker) -> None:
        """Take calls of one more ranker, which is loaded and warm."""
        self._rankers.append(ranker)
        self.loop.inbox.put(Enter(ranker))

    def leave(self, ranker: LoadedRanker) -> None:
        """Free a ranker that no call uses any more."""
        self._rankers.remove(ranker)
        self.loop.inbox.put(Leave(ranker))

    async def in_turns(self, steps: Iterator[None]) -> None:
        """Run steps on the device's thread, one at a time, while it has nothing else to do.

        Each step should take a few milliseconds, because a call that comes meanwhile waits for it.
        Raises: the error of a step; Unavailable if the device is lost or hangs, or if it is stopped.
        """
        if self.state is DeviceState.LOST or self._is_stopping:
            raise self._unavailable()
        turns = InTurns(steps, Future())
        self._beside.add(turns)
        try:
            self.loop.inbox.put(turns)
            await asyncio.wrap_future(turns.done)
        finally:
            self._beside.discard(turns)

    def doubt(self, ranker: LoadedRanker) -> None:
        """Have a ranker's speed measured when the device is idle, unless the last measurement is recent."""
        if ranker.speeds.encoding.age_s > MEASURED_LATELY_S:
            self.loop.inbox.put(Measure(ranker))

    def stop(self) -> None:
        """End after the work on the device. Waiting calls get no answer.

        A thread that has not ended after `STOP_GRACE_S` is left running.
        """
        self._is_stopping = True
        self._end_beside(Unavailable("the server stopped", reason=Reason.DRAINING))
        self._event_loop.call_soon_threadsafe(self._timer.cancel)
        self.loop.inbox.put(Stop())
        wait((self._ended,), timeout=STOP_GRACE_S)
        # If its call returns later, the thread must touch nothing.
        if not self._ended.done():
            log.error("the device's thread does not end; it is left behind")
            self.loop.watchdog.give_up()
        self._thread.shutdown(timeout_s=STOP_GRACE_S if self._ended.done() else 0.0)

    def queue_tokens(self, ranker: str) -> float:
        """The number of waiting tokens of a ranker: in its queue after the last turn, and in the inbox."""
        arrived = sum(each.tokens for message in self._arrived(ranker) for each in message.inputs)
        return float(self._queue(ranker).tokens + arrived)

    def queue_age_s(self, ranker: str) -> float:
        """How long the ranker's input that is due first has waited; 0 if none waits."""
        now_s, queued_s = time.monotonic(), self._queue(ranker).first_queued_s
        return now_s - (queued_s or min((each.at_s for each in self._arrived(ranker)), default=now_s))

    def is_in(self, state: DeviceState) -> bool:
        """Whether the device is in this state."""
        return self.state is state

    def _arrived(self, ranker: str) -> list[Inputs]:
        messages = self.loop.inbox.peek()
        return [each for each in messages if isinstance(each, Inputs) and each.call.ranker.key == ranker]

    def _queue(self, ranker: str) -> QueueState:
        # A ranker that has just come has no published state yet.
        return self.loop.work.states.get(ranker, QueueState())

    def _start(self, *, load_first: bool = False) -> Future[None]:
        """Run the loop on the thread, and handle its end if it ends while the device is not stopping."""
        loop = self.loop
        ended = self._thread.submit(partial(loop.run, load_first=load_first))

        def tell(_: Future[None]) -> None:
            # This comes after all of the thread's own reports.
            if not self._is_stopping:
                self._event_loop.call_soon_threadsafe(self._take_end, loop, ended)

        ended.add_done_callback(tell)
        return ended

    def _answer_open(self, error: FarrankError) -> None:
        for call in self._open:
            call.settle(error)

    def _end_beside(self, error: FarrankError) -> None:
        for turns in list(self._beside):
            turns.end(error)

    def _make_loop(self) -> DeviceLoop:
        watchdog = Watchdog(self._hang_after_s)
        loop = DeviceLoop(self._rankers, self._reservations, self._metrics, watchdog, self._report)
        self._reservations.order = loop.work.order
        return loop

    def _report(self, loop: DeviceLoop, state: DeviceState) -> None:
        """Pass a report of the device thread to the event loop."""
        self._event_loop.call_soon_threadsafe(self._take_report, loop, state)

    def _take_report(self, loop: DeviceLoop, state: DeviceState) -> None:
        # Ignore reports of a thread that was given up.
        if loop is self.loop and self.state is not DeviceState.LOST:
            self._change(state)

    def _take_end(self, loop: DeviceLoop, ended: Future[None]) -> None:
        """Replace a thread that has ended for any reason, unless the last few ended without any success."""
        if loop is not self.loop or self.state is DeviceState.LOST or self._is_stopping:
            return
        log.error("the device's thread ended; another takes over", exc_info=ended.exception())
        self._ends_in_vain = 0 if loop.has_succeeded else self._ends_in_vain + 1
        if self._ends_in_vain >= RELOADS_IN_VAIN:
            self._change(DeviceState.LOST)
            return
        message = "the device's thread ended, and the device is being recovered"
        self._replace_thread(Unavailable(message, reason=Reason.WORKER_DIED, retry_after_ms=1000))

    def _change(self, state: DeviceState) -> None:
        if state is self.state:
            return
        log.log(logging.INFO if state is DeviceState.READY else logging.ERROR, "the device is %s", state)
        self.state = state
        if state is DeviceState.RELOADING:
            self._metrics.worker_restarts.inc()
        if state is DeviceState.LOST:
            self._answer_open(self._unavailable())
            self._end_beside(self._unavailable())
            self.lost.set()
        for changed in self._coming_back:
            if not changed.done():
                changed.set_result(None)
        for listener in self.on_change:
            listener(state)

    def _unavailable(self) -> Unavailable:
        if self.state is DeviceState.LOST:
            message = "the device is lost and could not be recovered; ask another replica"
            return Unavailable(message, reason=Reason.DEVICE_LOST)
        message = "the device is being recovered; retry later, or ask another replica"
        return Unavailable(message, reason=Reason.DEVICE_RELOADING, retry_after_ms=1000)

    def _tick(self) -> None:
        now_s = time.monotonic()
        if self.loop.watchdog.tick(now_s - self._ticked_s):
            self._give_up_thread()
        self._ticked_s = now_s
        if self.state is not DeviceState.LOST:
            self._timer = self._event_loop.call_later(TICK_S, self._tick)

    def _give_up_thread(self) -> None:
        """Answer all calls that a hung thread keeps waiting, and let another thread take over the device."""
        log.error("the device has hung: a call into it is far beyond its time; its thread is given up")
        self.loop.watchdog.give_up()
        hung_before, self._hung = self._hung, self._thread
        if hung_before is not None and hung_before.is_alive:
            # Each hung thread keeps its runtimes' memory. One hung thread is tolerated, a second one is not.
            self._change(DeviceState.LOST)
            return
        message = "the device hung and is being recovered"
        self._replace_thread(Unavailable(message, reason=Reason.DEVICE_HUNG, retry_after_ms=1000))

    def _replace_thread(self, error: Unavailable) -> None:
        """Fail all calls of the thread with `error`, and load the rankers on a new thread."""
        self._change(DeviceState.RELOADING)
        self._answer_open(error)
        self._end_beside(error)
        # The old thread ends when its call returns, if it has not ended yet.
        self._thread.shutdown(timeout_s=0.0)
        self._thread = DeviceThread()
        self.loop = self._make_loop()
        self._ended = self._start(load_first=True)
