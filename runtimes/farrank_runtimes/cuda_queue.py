"""Batches on a GPU: CUDA streams, pinned memory for the tokens, and one batch begun ahead.

All rankers on a device share its streams. Encoding has its own stream: batches of all rankers run in the
order in which they were begun, and no other work waits for them. Copies of the next batch and aggregators
have other streams. The server combines features on the thread's current stream.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle

import torch
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.packed.stream import Packing, TokenStream
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.runtime import Encoding


@dataclass(frozen=True, slots=True)
class DeviceStreams:
    """A device's streams; waiting kernels of the aggregator have priority over those of batches."""

    encoding: torch.cuda.Stream
    copies: torch.cuda.Stream
    aggregation: torch.cuda.Stream


@cache
def streams_of(device: torch.device) -> DeviceStreams:
    """Return a CUDA device's streams, the same at every call."""
    stream: Callable[..., torch.cuda.Stream] = torch.cuda.Stream  # torch has no annotations for it
    return DeviceStreams(stream(device), stream(device), stream(device, priority=-1))


@contextmanager
def on_side_stream(device: torch.device) -> Iterator[None]:
    """Run the block on the aggregator's stream, after the work on the current stream; a CPU has only one.

    The current stream continues when the block's work is done. So each stream may read and free the other's
    tensors: freed memory is not written again before it was read.
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
    """Record in torch that the current stream will read features that another stream has computed.

    Their memory belongs to the other stream: once freed, that stream's next batch could overwrite it before
    the current stream has read it.
    """
    if device.type == "cuda":
        reader = torch.cuda.current_stream(device)
        for tensor in (features.vectors, features.roles):
            if tensor is not None:
                tensor.record_stream(reader)
    return features


# 128 bytes of int32: every row has the alignment of a warp's reads, which compiled kernels expect.
ALIGNED = 32


class Stage:
    """Buffers for one batch's tokens, in pinned memory and on the device; they grow if needed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = torch.empty(0, dtype=torch.int32)
        self._there = torch.empty(0, dtype=torch.int32, device=device)
        self._last: torch.cuda.Event | None = None

    def take(self, end: torch.cuda.Event) -> None:
        """Wait for the batch that had the stage and may still read it; `end` is the next batch's."""
        if self._last is not None:
            self._last.synchronize()
        self._last = end

    def upload(self, packing: Packing) -> tuple[Tensor, Tensor]:
        """Begin one copy of all inputs of the device, on the current stream; return views of it there.

        Shapes: -> tokens (5, T), offsets (P + 1,), int32.
        """
        rows, count = packing.tokens.shape
        width, offsets = _aligned(count), len(packing.offsets)
        start = _aligned(offsets)
        size = start + rows * width
        if size > len(self._host):
            room = 1 << (size - 1).bit_length()  # by doubling: pinning memory takes milliseconds
            # Both or neither: memory may run out between the two.
            self._host, self._there = (
                torch.empty(room, dtype=torch.int32, pin_memory=self._device.type == "cuda"),
                torch.empty(room, dtype=torch.int32, device=self._device),
            )
        host = self._host.numpy()
        host[:offsets] = packing.offsets
        host[start:size].reshape(rows, width)[:, :count] = packing.tokens
        there = self._there[:size]
        there.copy_(self._host[:size], non_blocking=True)
        return there[start:].view(rows, width)[:, :count], there[:offsets]


def _aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED


# Encodes a stream of P inputs on the current stream of its device, without waiting for it.
Encode = Callable[[TokenStream], Features]


class CudaFeed:
    """For a GPU: tokens are copied during the encoding of the previous batch, and only `rows` waits.

    There are two stages, one for the running batch and one for the batch being copied; a third batch waits
    for the end of the first. Make the queue after the weights are loaded and fused, which happens on the
    loading thread's stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = streams_of(device)
        self._stages = cycle([Stage(device), Stage(device)])
        torch.cuda.synchronize(device)

    def begin(self, packing: Packing, encode: Encode) -> Encoding:
        """Queue a batch after the last one."""
        stage, encoding = next(self._stages), self._streams.encoding
        timed_event: Callable[..., torch.cuda.Event] = partial(torch.cuda.Event, enable_timing=True)
        start = timed_event()
        # Blocking: a waiting thread sleeps, and leaves its core to the tokenizers.
        end = timed_event(blocking=True)
        stage.take(end)
        try:
            with torch.cuda.stream(self._streams.copies):
                tokens, offsets = stage.upload(packing)
            # The next batch to take the stage waits for the end of this one, so that its memory needs no
            # record of the stream that reads it.
            encoding.wait_stream(self._streams.copies)
            with torch.cuda.stream(encoding):
                start.record()
                stream = TokenStream.of(tokens, offsets, packing)
                features = encode(stream)
        finally:
            # The begun part of a failed batch continues to run and reads the stage.
            end.record(encoding)
        return QueuedBatch(features, stream, start, end, self._device)


@dataclass(frozen=True, slots=True, eq=False)
class QueuedBatch:
    """A batch among others in a device's queue."""

    features: Features
    stream: TokenStream
    start: torch.cuda.Event
    end: torch.cuda.Event
    device: torch.device

    def rows(self) -> list[Features]:
        """Wait until it is done, but not for later batches; return each input's features."""
        with device_failures():
            self.end.synchronize()
            return self.stream.rows(handed_over(self.features, self.device))

    def device_s(self) -> float:
        """Return the time of its encoding; waiting for another batch does not count.

        All batches of a device run in one stream, so a batch starts when the previous one has ended. Idle
        time within a batch, when the host is late, counts.
        """
        return float(self.start.elapsed_time(self.end)) / 1e3
