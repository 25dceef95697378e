"""The device as the event loop sees it: its state, its thread, and what happens when that hangs."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial

from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, PendingDocument, QueuedInput
from farrank_server.engine.device.device_loop import RELOADS_IN_VAIN, DeviceLoop, DeviceState, DeviceThread
from farrank_server.engine.device.watchdog import TICK_S, Watchdog
from farrank_server.engine.device.work_queue import Close, Inputs, Measure, Open, Stop
from farrank_server.engine.rankers.loaded import LoadedRanker
from farrank_server.errors import FarrankError, Reason, Unavailable
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

# A speed that was measured so lately is not measured anew because it is doubted.
MEASURED_LATELY_S = 30.0

# How long stopping waits for what is on the device. Its callers have been answered: what takes longer is left
# behind, on a thread that keeps no process from ending.
STOP_GRACE_S = 1.0

# What the device's failures tell calls that they took with them; none of it is the calls' own fault.
TAKEN_WITH_IT = frozenset((Reason.WORKER_DIED, Reason.DEVICE_HUNG))


class Device:
    """Owns the device's state. Belongs to the event loop, except that any thread may `submit`.

    `thread` is the one that loaded the rankers. `lost` is set when the device cannot be brought back. Who
    appends to `on_change` is called with each new state.
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
        self._rankers = rankers
        self._reservations = reservations
        self._metrics = metrics
        self._hang_after_s = hang_after_s
        self._event_loop = asyncio.get_running_loop()
        self._open: set[ActiveCall] = set()
        self._coming_back: set[asyncio.Future[None]] = set()
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
        """Whether it is lost, or a thread hangs on it and no other has taken over yet."""
        hangs = self._hung is not None and self._hung.is_alive
        return self.state is DeviceState.LOST or (self.state is DeviceState.RELOADING and hangs)

    def check_ready(self) -> None:
        """Refuse while there is nothing to run calls on.

        Raises: Unavailable, with a hint while the device is being brought back.
        """
        if self.state is not DeviceState.READY:
            raise self._unavailable()

    def open(self, call: ActiveCall) -> None:
        """Give a call its place in the order. Raises: as `check_ready`."""
        self.check_ready()
        self._open.add(call)
        # There is nothing to do for it until some of it is read.
        self.loop.inbox.put(Open(call), wakes=False)

    def submit(
        self, call: ActiveCall, inputs: Sequence[QueuedInput], documents: Sequence[PendingDocument]
    ) -> None:
        """Queue inputs of a call; of `documents` those that miss nothing are ready to be scored."""
        self.loop.inbox.put(Inputs(call, time.monotonic(), inputs, documents))
        # The device first: what this thread does next is not waited for.
        time.sleep(0)

    def close(self, call: ActiveCall) -> None:
        """Forget a call; what waits of it does not reach the device any more."""
        self._open.discard(call)
        # An answered call the device's thread forgot itself: waking it would keep the answer waiting.
        if not call.is_answered:
            self.loop.inbox.put(Close(call))

    async def brought_back(self) -> None:
        """Wait while the device is brought back. Raises: Unavailable if it is lost; what `abandon` says."""
        while self.state is DeviceState.RELOADING:
            changed = self._event_loop.create_future()
            self._coming_back.add(changed)
            try:
                await changed
            finally:
                self._coming_back.discard(changed)
        self.check_ready()

    def abandon(self, error: FarrankError) -> None:
        """Answer every call with an error, those included that wait until the device is back."""
        self._answer_open(error)
        for changed in self._coming_back:
            if not changed.done():
                changed.set_exception(error)

    def doubt(self, ranker: LoadedRanker) -> None:
        """Have a ranker's speed measured when the device is idle, if that was not done lately."""
        if ranker.speeds.encoding.age_s > MEASURED_LATELY_S:
            self.loop.inbox.put(Measure(ranker))

    def stop(self) -> None:
        """End after what is on the device now; what waits stays unanswered.

        A thread that has not ended after `STOP_GRACE_S` is left behind.
        """
        self._is_stopping = True
        self._event_loop.call_soon_threadsafe(self._timer.cancel)
        self.loop.inbox.put(Stop())
        wait((self._ended,), timeout=STOP_GRACE_S)
        # If it comes back after all, it is to touch nothing.
        if not self._ended.done():
            log.error("the device's thread does not end; it is left behind")
            self.loop.watchdog.give_up()
        self._thread.shutdown(timeout_s=STOP_GRACE_S if self._ended.done() else 0.0)

    def queue_tokens(self, ranker: str) -> float:
        """A ranker's tokens that wait: those in its queue after the last turn, and what came in since."""
        arrived = sum(each.tokens for message in self._arrived(ranker) for each in message.inputs)
        return float(self.loop.work.states[ranker].tokens + arrived)

    def queue_age_s(self, ranker: str) -> float:
        """How long the ranker's input that is due first has waited; 0 if nothing waits."""
        now_s, queued_s = time.monotonic(), self.loop.work.states[ranker].first_queued_s
        return now_s - (queued_s or min((each.at_s for each in self._arrived(ranker)), default=now_s))

    def is_in(self, state: DeviceState) -> bool:
        """Whether the device is in a state."""
        return self.state is state

    def _arrived(self, ranker: str) -> list[Inputs]:
        messages = self.loop.inbox.peek()
        return [each for each in messages if isinstance(each, Inputs) and each.call.ranker.name == ranker]

    def _start(self, *, load_first: bool = False) -> Future[None]:
        """Have the thread run the loop; should it end without being told to, that is heard."""
        loop = self.loop
        ended = self._thread.submit(partial(loop.run, load_first=load_first))

        def tell(_: Future[None]) -> None:
            # After all that the thread itself has reported.
            if not self._is_stopping:
                self._event_loop.call_soon_threadsafe(self._take_end, loop, ended)

        ended.add_done_callback(tell)
        return ended

    def _answer_open(self, error: FarrankError) -> None:
        for call in self._open:
            call.settle(error)

    def _make_loop(self) -> DeviceLoop:
        watchdog = Watchdog(self._hang_after_s)
        loop = DeviceLoop(self._rankers, self._reservations, self._metrics, watchdog, self._report)
        self._reservations.order = loop.work.order
        return loop

    def _report(self, loop: DeviceLoop, state: DeviceState) -> None:
        """Hear from the device's thread."""
        self._event_loop.call_soon_threadsafe(self._take_report, loop, state)

    def _take_report(self, loop: DeviceLoop, state: DeviceState) -> None:
        # A thread that was given up has nothing to say any more.
        if loop is self.loop and self.state is not DeviceState.LOST:
            self._change(state)

    def _take_end(self, loop: DeviceLoop, ended: Future[None]) -> None:
        """Replace a thread that has ended, whatever ended it, unless the last few came to nothing, too."""
        if loop is not self.loop or self.state is DeviceState.LOST or self._is_stopping:
            return
        log.error("the device's thread ended; another takes over", exc_info=ended.exception())
        self._ends_in_vain = 0 if loop.has_succeeded else self._ends_in_vain + 1
        if self._ends_in_vain >= RELOADS_IN_VAIN:
            self._change(DeviceState.LOST)
            return
        message = "the device's thread ended, and the device is being brought back"
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
            self.lost.set()
        for changed in self._coming_back:
            if not changed.done():
                changed.set_result(None)
        for listener in self.on_change:
            listener(state)

    def _unavailable(self) -> Unavailable:
        if self.state is DeviceState.LOST:
            message = "the device is lost and could not be brought back; ask another replica"
            return Unavailable(message, reason=Reason.DEVICE_LOST)
        message = "the device is being brought back; come back, or ask another replica"
        return Unavailable(message, reason=Reason.DEVICE_RELOADING, retry_after_ms=1000)

    def _tick(self) -> None:
        now_s = time.monotonic()
        if self.loop.watchdog.tick(now_s - self._ticked_s):
            self._give_up_thread()
        self._ticked_s = now_s
        if self.state is not DeviceState.LOST:
            self._timer = self._event_loop.call_later(TICK_S, self._tick)

    def _give_up_thread(self) -> None:
        """Answer everybody whom a hung thread keeps waiting, and let another one take over the device."""
        log.error("the device has hung: a call into it is far beyond its time; its thread is given up")
        self.loop.watchdog.give_up()
        hung_before, self._hung = self._hung, self._thread
        if hung_before is not None and hung_before.is_alive:
            # Each takes a thread and its runtimes' memory with it: one is borne, not one after the other.
            self._change(DeviceState.LOST)
            return
        message = "the device hung and is being brought back"
        self._replace_thread(Unavailable(message, reason=Reason.DEVICE_HUNG, retry_after_ms=1000))

    def _replace_thread(self, error: Unavailable) -> None:
        """Tell `error` to all whose work the thread held, and load the rankers on another one."""
        self._change(DeviceState.RELOADING)
        self._answer_open(error)
        # It ends when it comes back, if it has not ended.
        self._thread.shutdown(timeout_s=0.0)
        self._thread = DeviceThread()
        self.loop = self._make_loop()
        self._ended = self._start(load_first=True)
