"""How a device is fed with packed batches: one after the other on a CPU, queued on a GPU."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from farrank_rankers.features import Features
from farrank_rankers.packed.packing import Packing
from farrank_rankers.packed.stream import TokenStream
from farrank_runtimes.device_streams import handed_over, streams_of
from farrank_runtimes.interface import Encoded, Encoding
from farrank_runtimes.staging import StagingRing
from farrank_runtimes.torch_failures import device_failures

# Encodes a stream of P inputs on the current stream of its device, without waiting for it.
Encode = Callable[[TokenStream], Features]


class Feed(Protocol):
    """What brings batches to a device."""

    def begin(self, packing: Packing, encode: Encode) -> Encoding:
        """Begin a batch."""
        ...


class HostFeed:
    """For a CPU, which has all there is: a batch is done when it was begun."""

    def begin(self, packing: Packing, encode: Encode) -> Encoding:
        """Encode a batch."""
        started_s = time.perf_counter()
        tokens, offsets = torch.from_numpy(packing.tokens), torch.from_numpy(packing.offsets)
        stream = TokenStream.of(tokens, offsets, packing)
        rows = stream.rows(encode(stream))
        return Encoded(rows, time.perf_counter() - started_s)


class CudaFeed:
    """For a GPU: tokens are copied while the batch before is encoded, and nobody waits before rows are read.

    A third batch waits for the end of the first, whose place in the staging ring it takes. Made when the
    weights are where they stay: these came, and were fused, on the stream of whoever loaded them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = streams_of(device)
        self._ring = StagingRing(device)
        torch.cuda.synchronize(device)

    def begin(self, packing: Packing, encode: Encode) -> Encoding:
        """Queue a batch behind the last one."""
        stage, encoding = self._ring.free(), self._streams.encoding
        timed_event: Callable[..., torch.cuda.Event] = partial(torch.cuda.Event, enable_timing=True)
        start = timed_event()
        # Blocking: who waits sleeps, and leaves the core to those who read texts.
        end = timed_event(blocking=True)
        stage.last = end
        try:
            with torch.cuda.stream(self._streams.copies):
                tokens, offsets = stage.upload(packing)
            # The stage outlives the batch, whose end the next to take it waits for: its memory needs no
            # record of the stream that reads it.
            encoding.wait_stream(self._streams.copies)
            with torch.cuda.stream(encoding):
                start.record()
                stream = TokenStream.of(tokens, offsets, packing)
                features = encode(stream)
        finally:
            # Of a batch that failed half-way, what was begun runs on, and reads the stage.
            end.record(encoding)
        return Queued(features, stream, start, end, self._device)


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """A batch among others in a device's queue."""

    features: Features
    stream: TokenStream
    start: torch.cuda.Event
    end: torch.cuda.Event
    device: torch.device

    def rows(self) -> list[Features]:
        """Wait until it is done, whatever is queued behind it; give each input's features."""
        with device_failures():
            self.end.synchronize()
            return self.stream.rows(handed_over(self.features, self.device))

    def device_s(self) -> float:
        """Say how long it was encoded, from the end of the batch before or its own start, the later one.

        All batches of a device run in one stream, whose events come to pass in its order: its start does when
        the batch before has ended. What the device idles within a batch, for a host that is late, counts.
        """
        return float(self.start.elapsed_time(self.end)) / 1e3
