"""How a GPU gets its batches: CUDA streams, pinned memory for the tokens, and one batch begun ahead.

All rankers on a device share its streams. Encoding has one of its own: batches run in the order in which
they were begun, whichever ranker's they are, and nothing else waits behind them. Copies of the next batch
and aggregators have other streams. The server puts features together on the thread's current stream.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

import torch
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.packed.stream import Packing, TokenStream
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.runtime import Encoding


@dataclass(frozen=True, slots=True)
class DeviceStreams:
    """Where what runs; the aggregator's kernels go before those of batches when both wait."""

    encoding: torch.cuda.Stream
    copies: torch.cuda.Stream
    aggregation: torch.cuda.Stream


@cache
def streams_of(device: torch.device) -> DeviceStreams:
    """Give a CUDA device's streams, once made and the same for all who ask."""
    stream: Callable[..., torch.cuda.Stream] = torch.cuda.Stream  # torch leaves it without annotations
    return DeviceStreams(stream(device), stream(device), stream(device, priority=-1))


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Run what is inside on the aggregator's stream, behind what the current stream has; a CPU has but one.

    The current stream goes on when it is done. What either makes, the other may therefore read and free:
    memory that goes back to the stream it came from is not written before it was read.
    """
    if device.type != "cuda":
        yield
        return
    own, caller = streams_of(device).aggregation, torch.cuda.current_stream(device)
    own.wait_stream(caller)
    try:
        with torch.cuda.stream(own):
            yield
    finally:
        caller.wait_stream(own)


def handed_over(features: Features, device: torch.device) -> Features:
    """Tell torch that features made on another stream, and done, are read on the current one from now on.

    Their memory is the other stream's: freed, it would go to that stream's next batch at once, before what
    was begun here has read it.
    """
    if device.type == "cuda":
        reader = torch.cuda.current_stream(device)
        for tensor in features:
            if tensor is not None:
                tensor.record_stream(reader)
    return features


# 128 bytes of int32: every row begins where a warp's reads do, and where compiled kernels expect it.
ALIGNED = 32


class Ended(Protocol):
    """What tells of a batch's end, such as a CUDA event."""

    def synchronize(self) -> None:
        """Wait for it."""
        ...


class Stage:
    """Room for one batch, on the host and again on the device, which grows with the largest one.

    `last` is the end of the batch that had it last: before, neither half may be written.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = torch.empty(0, dtype=torch.int32)
        self._there = torch.empty(0, dtype=torch.int32, device=device)
        self.last: Ended | None = None

    def upload(self, packing: Packing) -> tuple[Tensor, Tensor]:
        """Begin one copy of all that the device needs, on the current stream; give views of it there.

        Shapes: -> tokens (5, T), offsets (P + 1,), int32.
        """
        rows, count = packing.tokens.shape
        width, offsets = _aligned(count), len(packing.offsets)
        start = _aligned(offsets)
        size = start + rows * width
        self._grow(size)
        host = self._host.numpy()
        host[:offsets] = packing.offsets
        host[start:size].reshape(rows, width)[:, :count] = packing.tokens
        there = self._there[:size]
        there.copy_(self._host[:size], non_blocking=True)
        return there[start:].view(rows, width)[:, :count], there[:offsets]

    def _grow(self, size: int) -> None:
        if size <= len(self._host):
            return
        room = 1 << (size - 1).bit_length()  # by doubling: pinning memory takes milliseconds
        # Both or neither: memory may end between the two.
        self._host, self._there = (
            torch.empty(room, dtype=torch.int32, pin_memory=self._device.type == "cuda"),
            torch.empty(room, dtype=torch.int32, device=self._device),
        )


class StagingRing:
    """A stage for each batch in flight: one that runs, and one that is being brought."""

    def __init__(self, device: torch.device, count: int = 2) -> None:
        self._stages: Sequence[Stage] = [Stage(device) for _ in range(count)]
        self._turn = 0

    def free(self) -> Stage:
        """Give the stage whose batch was begun first, waiting for that batch's end."""
        stage = self._stages[self._turn]
        if stage.last is not None:
            stage.last.synchronize()
            stage.last = None
        self._turn = (self._turn + 1) % len(self._stages)
        return stage


def _aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


# Encodes a stream of P inputs on the current stream of its device, without waiting for it.
Encode = Callable[[TokenStream], Features]


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
