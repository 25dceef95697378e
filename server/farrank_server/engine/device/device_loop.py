"""The thread that owns the device: takes the most urgent batch, has it run, and lives on when it fails."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from farrank_server.batching.batcher import Waiting
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, Part, PendingDocument
from farrank_server.engine.device.batch_in_flight import BatchInFlight, Items, begin
from farrank_server.engine.device.batch_results import Execution
from farrank_server.engine.rankers.loaded import LoadedRanker, Ready
from farrank_server.errors import DeadlineExceeded, DroppedAt, FarrankError, Reason, Unavailable
from farrank_server.metrics import Metrics


def device_thread() -> ThreadPoolExecutor:
    """Make the executor of one thread that loads the rankers and then runs the worker.

    One thread, because OpenMP keeps a team of threads for every thread that ever ran a parallel operation.
    With two teams it counts more threads than cores and stops spinning between operations: a small batch
    then takes half as long again on a CPU (MiniLM-L6, 68 tokens, 2 cores: 17 ms instead of 11.6).
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="farrank-device")


# Batches begun behind the one that runs. One is enough for the device to go on while the features of the last
# are scored; each more would be one that no urgent call can pass, and that runs though its callers have gone.
AHEAD = 1


class Pipeline:
    """The batches on the device, of whatever lane. Used on the worker's thread alone.

    A runtime that queues gets the next batch before the last one is waited for; of any other, a batch is
    finished as soon as it is begun. Losing the device leaves a pipeline useless: all it held is lost.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._begun: deque[BatchInFlight] = deque()

    @property
    def holds_batches(self) -> bool:
        """Whether anything that was begun is still to be finished."""
        return bool(self._begun)

    def run(self, lane: LoadedRanker, items: Items) -> None:
        """Begin a batch, then finish those before it.

        Raises: DeviceLost.
        """
        queued = lane.runtime.capabilities().queued
        if not queued:
            # It keeps this thread until it is done: nobody's scores shall wait for that.
            self._finish_to(0)
        begun = begin(lane, items, queued=queued)
        self._begun.append(begun)
        # Of a batch that failed at once, the next one should know.
        self._finish_to(AHEAD if begun.in_flight else 0)

    def score(self, lane: LoadedRanker, ready: list[Ready]) -> None:
        """Score documents that need no encoding, beside what runs. Raises: DeviceLost."""
        self._execution.score(lane, ready, beside=self._in_flight)

    def settle(self) -> None:
        """Wait for the oldest batch, or, if that is done, finish it. Raises: DeviceLost.

        In two steps: what came in during the first can be begun before the second.
        """
        if self._begun[0].in_flight:
            self._begun[0].wait()
        else:
            self._finish_to(len(self._begun) - 1)

    def _finish_to(self, left: int) -> None:
        while len(self._begun) > left:
            oldest = self._begun.popleft()
            self._execution.finish(oldest, beside=self._in_flight)

    @property
    def _in_flight(self) -> bool:
        return any(begun.in_flight for begun in self._begun)


log = logging.getLogger(__name__)

# How long to wait before each attempt to bring a lost device back.
RELOAD_DELAYS_S = (0.0, 1.0, 3.0)

LOST = "the device is lost and could not be brought back; ask another replica"


class Worker:
    """Runs the batches of all lanes on one device, from its making on.

    Any thread calls `open`, `submit` and `close`; the rest happens on `device`, the thread that loaded the
    rankers. `on_lost` is called once, from that thread, when the device could not be brought back.
    """

    def __init__(
        self,
        lanes: Sequence[LoadedRanker],
        device: ThreadPoolExecutor,
        reservations: Reservations,
        metrics: Metrics,
        on_lost: Callable[[], None],
    ) -> None:
        self._lanes = lanes
        self._metrics = metrics
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._execution = Execution(self._changed, reservations, metrics)
        self._jobs: dict[ActiveCall, LoadedRanker] = {}
        # Jobs with features on the device: what is lost with it.
        self._started: set[ActiveCall] = set()
        self._stopping = False
        self._lost = False
        self._ended = device.submit(self._run)

    def stop(self) -> None:
        """End after what is on the device now; what waits stays unanswered."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._ended.result()

    def open(self, lane: LoadedRanker, job: ActiveCall) -> None:
        """Give a job its place in the order.

        Raises: Unavailable if the device is lost.
        """
        with self._changed:
            if self._lost:
                raise Unavailable(LOST, reason=Reason.DEVICE_LOST)
            self._jobs[job] = lane
            call = job.call
            lane.batcher.open(job.id, arrival_s=call.arrival_s, deadline_s=call.deadline_s)

    def submit(
        self, lane: LoadedRanker, job: ActiveCall, parts: Sequence[Part], documents: Sequence[PendingDocument]
    ) -> None:
        """Queue inputs of an open job; of `documents` those that miss nothing are ready to be scored."""
        with self._changed:
            if job not in self._jobs:
                return
            inputs = [(part.input.tokens, part) for part in parts]
            lane.batcher.add(job.id, inputs, now_s=time.monotonic(), tokens_per_s=lane.speeds.encoding.per_s)
            for document in documents:
                if document.missing == 0:
                    lane.ready.extend((job, whole) for whole in job.ready_with(document))
            self._changed.notify()
        # The device first: what this thread does next is not waited for.
        time.sleep(0)

    def close(self, job: ActiveCall) -> None:
        """Forget a job; none of its waiting inputs reaches the device any more."""
        with self._changed:
            lane = self._jobs.pop(job, None)
            self._started.discard(job)
            if lane is not None:
                lane.batcher.close(job.id)

    def abandon(self, error: FarrankError) -> None:
        """Answer every open job with an error: the server ends, and they are not done."""
        with self._changed:
            open_jobs = list(self._jobs)
        for job in open_jobs:
            job.fail(error)

    def queue_tokens(self) -> dict[tuple[str, ...], float]:
        """Tokens that wait, by ranker."""
        with self._changed:
            return {(lane.name,): float(lane.batcher.queued_tokens) for lane in self._lanes}

    def queue_age_s(self) -> dict[tuple[str, ...], float]:
        """How long the input that is due first has waited, by ranker."""
        with self._changed:
            now_s = time.monotonic()
            first = {lane.name: lane.batcher.first_queued_s() for lane in self._lanes}
        return {(name,): now_s - since_s if since_s is not None else 0.0 for name, since_s in first.items()}

    def _run(self) -> None:
        while True:
            try:
                self._serve()
                return
            # Whatever ends the loop, SystemExit out of a native library included, must not end the server.
            except BaseException as error:
                log.exception("the device worker died; bringing it back")
                if not self._recover(error):
                    return

    def _serve(self) -> None:
        pipeline = Pipeline(self._execution)
        while True:
            with self._changed:
                while not (self._stopping or pipeline.holds_batches or self._has_work()):
                    self._changed.wait()
                turn = None if self._stopping else self._turn()
            if turn is None:
                if not pipeline.holds_batches:
                    return
                pipeline.settle()
                continue
            lane, items, ready = turn
            if ready:
                pipeline.score(lane, ready)
            if items:
                pipeline.run(lane, items)

    def _has_work(self) -> bool:
        return any(lane.has_work() for lane in self._lanes)

    def _turn(self) -> tuple[LoadedRanker, tuple[Waiting[Part], ...], list[Ready]] | None:
        """Choose what goes next, a batch or documents that are ready; None if nothing waits."""
        # Due times of all rankers are times of one clock: the lane that is due first goes first.
        lane = min((lane for lane in self._lanes if lane.has_work()), key=_due_s, default=None)
        if lane is None:
            return None
        ready = [(job, document) for job, document in lane.ready if job in self._jobs]
        lane.ready.clear()
        # What is ready jumped the queue; a batch of the same lane must not do so with it.
        return lane, () if ready else self._take(lane), ready

    def _take(self, lane: LoadedRanker) -> tuple[Waiting[Part], ...]:
        """Form the next batch, and answer the calls that it found late."""
        batch = lane.batcher.take(time.monotonic())
        for job in [job for job in self._jobs if job.id in batch.expired] if batch.expired else ():
            job.fail(
                DeadlineExceeded("the deadline passed while the call was queued", dropped_at=DroppedAt.QUEUE)
            )
        self._started.update(item.payload.job for item in batch.items)
        return batch.items

    def _recover(self, error: BaseException) -> bool:
        """Answer the jobs that the device took with it, and load the rankers anew. False: it is lost."""
        self._metrics.worker_restarts.inc()
        with self._changed:
            doomed, self._started = self._started, set()
        for job in doomed:
            job.fail(
                Unavailable(
                    f"the device worker died ({error}) and is restarting",
                    reason=Reason.WORKER_DIED,
                    retry_after_ms=1000,
                )
            )
        for delay_s in RELOAD_DELAYS_S:
            time.sleep(delay_s)
            try:
                for lane in self._lanes:
                    lane.runtime = lane.load()
                return True
            # SystemExit too: whatever a library raises here, the callers must hear of it.
            except BaseException:
                log.exception("the rankers could not be loaded again")
        with self._changed:
            self._lost = True
        self.abandon(Unavailable(LOST, reason=Reason.DEVICE_LOST))
        self._on_lost()
        return False


def _due_s(lane: LoadedRanker) -> float:
    """Documents that need no encoding go at once: they cost next to nothing."""
    due_s = lane.batcher.due_s()
    return -math.inf if lane.ready or due_s is None else due_s
