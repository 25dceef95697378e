"""The first batches of a freshly loaded ranker: what they bring into memory, and how fast they go."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from farrank_rankers.tokens import EncoderInput, Role
from farrank_runtimes.interface import Encoding

Encode = Callable[[Sequence[EncoderInput]], Encoding]

SHORT_INPUT = 16


def padded_query_input() -> EncoderInput:
    """Make an input whose query has padding behind it, as `pad_query_to` puts it there."""
    roles = np.full(SHORT_INPUT, Role.DOCUMENT, dtype=np.int32)
    roles[:4] = Role.SPECIAL, Role.QUERY, Role.PADDING, Role.SPECIAL
    return EncoderInput(np.ones_like(roles), roles, np.zeros_like(roles))


def measure_speed(encode: Encode, longest_input: int, max_batch_tokens: int) -> float:
    """Run full batches of short and of long inputs; return the best speed seen, in tokens per second.

    The best, not the mean: what else the machine does at its start must not make admission timid.
    """
    fastest = 0.0
    for length in (SHORT_INPUT, longest_input, longest_input, longest_input):
        rows = max(1, max_batch_tokens // length)
        ids = np.ones(length, dtype=np.int32)
        roles = np.full_like(ids, Role.DOCUMENT)
        roles[0] = Role.SPECIAL
        inputs = [EncoderInput(ids, roles, np.zeros_like(ids))] * rows
        started_s = time.perf_counter()
        encode(inputs).rows()
        fastest = max(fastest, rows * length / (time.perf_counter() - started_s))
    return fastest
