"""A batch that was handed to the device, until its features are taken in."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from farrank_rankers.features import Features
from farrank_runtimes.runtime import DeviceLost, Encoded, Encoding, forget_locals
from farrank_server.engine.call import QueuedInput
from farrank_server.engine.device.watchdog import Watchdog
from farrank_server.engine.device.work_queue import RankerQueue

Items = Sequence[QueuedInput]


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """An encoding that came to nothing; who asks for its rows hears why."""

    error: Exception

    def rows(self) -> list[Features]:
        """Raise what was raised on the device."""
        raise self.error

    def device_s(self) -> float:
        """Count no time: nobody measured it."""
        return 0.0


@dataclass(slots=True, eq=False)
class BatchInFlight:
    """A batch on the device. Times are seconds of `time.monotonic`.

    `seconds`, once it is `done_s`: how long the device was busy with it where batches queue there, its wait
    behind another left out; else from its beginning to its end.
    """

    queue: RankerQueue
    items: Items
    encoding: Encoding
    began_s: float
    done_s: float | None = None
    seconds: float = 0.0

    @property
    def is_queued(self) -> bool:
        """Whether the device takes batches in a queue of its own."""
        return self.queue.ranker.capabilities.queued

    @property
    def may_run(self) -> bool:
        """Whether the device may still be at it."""
        return self.is_queued and self.done_s is None

    def wait(self, watchdog: Watchdog) -> float:
        """Wait until the device is done with it, well or not; return when that was.

        Raises: DeviceLost.
        """
        if self.done_s is None:
            try:
                # Twice: it may have to wait for the batch before it.
                with watchdog.step(2 * expected_s(self.queue, self.items)):
                    self.encoding = Encoded(self.encoding.rows(), self.encoding.device_s())
            except DeviceLost:
                raise
            except Exception as error:
                self.encoding = Failed(forget_locals(error))
            self.done_s = time.monotonic()
            self.seconds = self.encoding.device_s() if self.is_queued else self.done_s - self.began_s
        return self.done_s


def begin(queue: RankerQueue, items: Items, watchdog: Watchdog) -> BatchInFlight:
    """Hand a batch to the device; a failure to do so is kept for whoever asks for its rows.

    Raises: DeviceLost.
    """
    began_s = time.monotonic()
    try:
        with watchdog.step(expected_s(queue, items)):
            encoding = queue.ranker.runtime.encode([item.input for item in items])
    except DeviceLost:
        raise
    except Exception as error:
        return BatchInFlight(queue, items, Failed(forget_locals(error)), began_s, done_s=time.monotonic())
    return BatchInFlight(queue, items, encoding, began_s)


def positions(queue: RankerQueue, items: Items) -> list[int]:
    """Say how many positions each input takes on the device."""
    return queue.batcher.policy.positions([item.tokens for item in items])


def expected_s(queue: RankerQueue, items: Items) -> float:
    """Say how long a batch should take at the measured speed."""
    return sum(positions(queue, items)) / queue.ranker.speeds.encoding.per_s
