"""A batch that was handed to the device, until its features are taken in."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from farrank_rankers.features import Features
from farrank_runtimes.runtime import DeviceLost, Encoded, Encoding
from farrank_server.batching.batcher import Waiting
from farrank_server.engine.call import Part
from farrank_server.engine.device.bisection import forget_locals
from farrank_server.engine.rankers.loaded import LoadedRanker

Items = Sequence[Waiting[Part]]


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

    lane: LoadedRanker
    items: Items
    queued: bool
    encoding: Encoding
    began_s: float
    done_s: float | None = None
    seconds: float = 0.0

    @property
    def in_flight(self) -> bool:
        """Whether the device may still be at it."""
        return self.queued and self.done_s is None

    def wait(self) -> float:
        """Wait until the device is done with it, well or not; return when that was.

        Raises: DeviceLost.
        """
        if self.done_s is None:
            try:
                self.encoding = Encoded(self.encoding.rows(), self.encoding.device_s())
            except DeviceLost:
                raise
            except Exception as error:
                self.encoding = Failed(forget_locals(error))
            self.done_s = time.monotonic()
            self.seconds = self.encoding.device_s() if self.queued else self.done_s - self.began_s
        return self.done_s


def begin(lane: LoadedRanker, items: Items, *, queued: bool) -> BatchInFlight:
    """Hand a batch to the device; a failure to do so is kept for who asks for its rows.

    `queued`: as the runtime's capabilities say.
    Raises: DeviceLost.
    """
    began_s = time.monotonic()
    try:
        encoding = lane.runtime.encode([item.payload.input for item in items])
    except DeviceLost:
        raise
    except Exception as error:
        return BatchInFlight(
            lane, items, queued, Failed(forget_locals(error)), began_s, done_s=time.monotonic()
        )
    return BatchInFlight(lane, items, queued, encoding, began_s)
