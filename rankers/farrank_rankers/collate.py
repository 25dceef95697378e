"""Encoder inputs of different lengths as one batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farrank_rankers.tokens import EncoderInput, Role

LongArray = NDArray[np.int64]


class Batch(NamedTuple):
    """What an encoder is called with, in the order of its parameters.

    Shapes: each (P, L) int64; roles are those of `tokens.Role`.
    """

    input_ids: LongArray
    roles: LongArray
    token_type_ids: LongArray


def collate(inputs: Sequence[EncoderInput], pad_id: int) -> Batch:
    """Pad inputs on the right to the longest.

    Raises: ValueError if there is no input.
    """
    if not inputs:
        raise ValueError("inputs is empty; a batch needs at least 1")
    shape = (len(inputs), max(item.tokens for item in inputs))
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    roles = np.full(shape, Role.PADDING, dtype=np.int64)
    token_type_ids = np.zeros(shape, dtype=np.int64)
    for row, item in enumerate(inputs):
        input_ids[row, : item.tokens] = item.input_ids
        roles[row, : item.tokens] = item.roles
        token_type_ids[row, : item.tokens] = item.token_type_ids
    return Batch(input_ids, roles, token_type_ids)
