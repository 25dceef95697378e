"""The first batches of a freshly loaded ranker: what they bring into memory, and how fast they go."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from farrank_rankers.tokens import EncoderInput, Role
from farrank_runtimes.runtime import Encoding, OutOfMemory

Encode = Callable[[Sequence[EncoderInput]], Encoding]

SHORT_INPUT = 16

# How many inputs of 15 tokens are in the streams that kernels are compiled with: 600 tokens, then 60, because
# FlexAttention has another kernel below 128. 600 tokens are 5 blocks, which is no model's size. torch takes
# sizes that are equal by chance for one size, and would compile again for the first real stream.
COMPILED_INPUTS = (40, 4)


def query_input(*, padded: bool) -> EncoderInput:
    """Make an input of 15 tokens; if `padded`, one more, padding behind the query as `pad_query_to` asks."""
    query = (Role.QUERY, Role.PADDING) if padded else (Role.QUERY,)
    front = (Role.SPECIAL, *query, Role.SPECIAL)
    roles = np.array(front + (Role.DOCUMENT,) * 12, dtype=np.int32)
    return EncoderInput(np.ones_like(roles), roles, np.zeros_like(roles))


def measure_speed(encode: Encode, longest_input: int, max_batch_tokens: int) -> float:
    """Run full batches of short and of long inputs; return the best speed seen, in tokens per second.

    The best, not the mean: whatever else the machine does during a start must not make admission timid.
    Raises: OutOfMemory if not even one input fits.
    """
    fastest = 0.0
    for length in (SHORT_INPUT, longest_input, longest_input, longest_input):
        fastest = max(fastest, _speed(encode, even_batch(max(1, max_batch_tokens // length), length)))
    return fastest


def even_batch(rows: int, length: int) -> list[EncoderInput]:
    """Make a batch of equal inputs of so many tokens."""
    roles = np.full(length, Role.DOCUMENT, dtype=np.int32)
    roles[0] = Role.SPECIAL
    return [EncoderInput(np.ones_like(roles), roles, np.zeros_like(roles))] * rows


def _speed(encode: Encode, inputs: Sequence[EncoderInput]) -> float:
    """Run a batch, or half of it if memory runs out; return tokens per second."""
    started_s = time.perf_counter()
    try:
        encode(inputs).rows()
    except OutOfMemory:
        if len(inputs) == 1:
            raise
    else:
        return sum(each.tokens for each in inputs) / (time.perf_counter() - started_s)
    # After the handler, which held the failed batch.
    return _speed(encode, inputs[: len(inputs) // 2])
