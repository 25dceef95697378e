"""The CUDA streams of a device, shared by all rankers on it, and how work passes from one to another.

Encoding has a stream of its own, so that its batches run in the order they were begun in, whichever rankers'
they are, and nothing else waits behind them: copies of the next batch, and aggregators, whose streams are
others. All of them are beside the thread's current stream, on which the server puts features together.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from farrank_rankers.features import Features


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
