"""A batch in flight: submitted to the device, its features not yet taken in."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from farrank_rankers.features import Features
from farrank_runtimes.runtime import DeviceLost, Encoding, forget_locals
from farrank_server.engine.call import QueuedInput
from farrank_server.engine.device.watchdog import Watchdog
from farrank_server.engine.device.work_queue import RankerQueue


class BatchInFlight:
    """A batch that starts on the device when this object is made. A failure is raised when its rows are read.

    `positions` holds the positions of each input on the device. Times are seconds of `time.monotonic`.
    `seconds` is set with `done_s`. Where batches queue on the device, it is the time the device was busy with
    this batch, without its wait behind another; elsewhere it is the time from start to end.
    Raises: DeviceLost.
    """

    def __init__(self, queue: RankerQueue, items: Sequence[QueuedInput], watchdog: Watchdog) -> None:
        self.queue = queue
        self.items = items
        self.positions = queue.batcher.policy.positions([item.tokens for item in items])
        self.began_s = time.monotonic()
        self.done_s: float | None = None
        self.seconds = 0.0
        self._watchdog = watchdog
        self._encoding: Encoding | None = None
        self._rows: list[Features] = []
        self._error: Exception | None = None
        with self._step(1):
            self._encoding = queue.ranker.runtime.encode([item.input for item in items])

    @property
    def is_queued(self) -> bool:
        """Whether the device takes batches in a queue of its own."""
        return self.queue.ranker.capabilities.queued

    @property
    def may_run(self) -> bool:
        """Whether the device may still be running it."""
        return self.is_queued and self.done_s is None

    def wait(self) -> None:
        """Wait until the device has finished the batch or failed. Raises: DeviceLost."""
        if self.done_s is not None or self._encoding is None:
            return
        # Twice the time, because it may wait for the batch before it.
        with self._step(2):
            self._rows = self._encoding.rows()
            self.seconds = self._encoding.device_s()
        self._encoding = None
        self.done_s = time.monotonic()
        if not self.is_queued:
            self.seconds = self.done_s - self.began_s

    def rows(self) -> list[Features]:
        """Wait for the batch and return each input's features, (F,) or (S, F…).

        Raises: the error raised on the device.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return self._rows

    @contextmanager
    def _step(self, share: int) -> Iterator[None]:
        """Mark a native call that should take `share` times the batch's time at the measured speed."""
        try:
            batch_s = sum(self.positions) / self.queue.ranker.tokens_per_s()
            with self._watchdog.step(share * batch_s, batch_s):
                yield
        except DeviceLost:
            raise
        except Exception as error:
            self._error = forget_locals(error)
            self.done_s = time.monotonic()
