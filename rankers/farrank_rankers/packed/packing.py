"""Encoder inputs end to end, on the host."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farrank_rankers.tokens import EncoderInput, IntArray, Role


class Packing(NamedTuple):
    """What becomes a stream on the device.

    Shapes: tokens (5, T) int32, their ids, roles, segments, places within their inputs, and inputs; offsets
    (P + 1,) int32, where each input begins and the last one ends; lengths P.
    """

    tokens: IntArray
    offsets: NDArray[np.int32]
    lengths: tuple[int, ...]


def pack(inputs: Sequence[EncoderInput]) -> Packing:
    """Put inputs end to end; padding inside them is left out, the tokens behind it keep their places.

    Raises: ValueError if there is no input.
    """
    if not inputs:
        raise ValueError("inputs is empty; a batch needs at least 1")
    kept = [np.flatnonzero(item.roles != Role.PADDING) for item in inputs]
    lengths = [len(places) for places in kept]
    tokens = np.empty((5, sum(lengths)), dtype=np.int32)
    offsets = np.zeros(len(inputs) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    for row, (item, places) in enumerate(zip(inputs, kept, strict=True)):
        own = tokens[:, offsets[row] : offsets[row + 1]]  # (5, L)
        own[0], own[1], own[2] = item.input_ids[places], item.roles[places], item.token_type_ids[places]
        own[3], own[4] = places, row
    return Packing(tokens, offsets, tuple(lengths))
