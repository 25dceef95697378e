"""Packings of random tokens."""

import numpy as np

from farrank_rankers.packed.stream import Packing, pack
from farrank_rankers.tokens import EncoderInput, Role


def packing_of(lengths: list[int], seed: int = 0) -> Packing:
    random = np.random.default_rng(seed)
    return pack(
        [
            EncoderInput(
                random.integers(0, 30_000, length, dtype=np.int32),
                random.integers(Role.SPECIAL, Role.DOCUMENT + 1, length).astype(np.int32),
                random.integers(0, 2, length, dtype=np.int32),
            )
            for length in lengths
        ]
    )
