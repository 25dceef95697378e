"""The first batches of a freshly loaded ranker: what they bring into memory, and how fast they go."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from farrank_rankers.tokens import EncoderInput, Role
from farrank_runtimes.runtime import Encoding, OutOfMemory

Encode = Callable[[Sequence[EncoderInput]], Encoding]

SHORT_INPUT = 16


# Inputs of the streams that kernels are compiled with: of 600 tokens, then of 60, for FlexAttention has
# another kernel below 128. Sizes that are equal by chance torch takes for the same: with the 512 blocks of
# 65,536 tokens and DeBERTa's 512 rows of distances, it would compile again for the first real stream. 5 is no
# model's size.
COMPILED_INPUTS = (40, 4)


def query_input(*, padded: bool) -> EncoderInput:
    """Make an input of 15 tokens; padded, with padding behind its query, as `pad_query_to` puts it there."""
    query = (Role.QUERY, Role.PADDING) if padded else (Role.QUERY,)
    front = (Role.SPECIAL, *query, Role.SPECIAL)
    roles = np.array(front + (Role.DOCUMENT,) * 12, dtype=np.int32)
    return EncoderInput(np.ones_like(roles), roles, np.zeros_like(roles))


def measure_speed(encode: Encode, longest_input: int, max_batch_tokens: int) -> float:
    """Run full batches of short and of long inputs; return the best speed seen, in tokens per second.

    The best, not the mean: what else the machine does at its start must not make admission timid.
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
    """Run a batch, or half of it where memory is short now, as a server would; return tokens per second."""
    started_s = time.perf_counter()
    try:
        encode(inputs).rows()
    except OutOfMemory:
        if len(inputs) == 1:
            raise
    else:
        return sum(each.tokens for each in inputs) / (time.perf_counter() - started_s)
    # Behind the handler, which held the failed batch.
    return _speed(encode, inputs[: len(inputs) // 2])
