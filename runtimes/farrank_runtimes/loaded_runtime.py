"""A ranker loaded onto its device with any library, and its warm-up batches."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from farrank_rankers.family import Aggregation, MaxSimOptions
from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput, Role
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.devices import free_memory
from farrank_runtimes.document_groups import Aggregate, GroupLimit, score_in_groups
from farrank_runtimes.maxsim import score_by_maxsim
from farrank_runtimes.runtime import Capabilities, DocumentScores, Encoding, OutOfMemory, closed
from farrank_runtimes.similarity import score_similarities

# The heavy part. Raises: ValueError if there is no input; OutOfMemory, DeviceLost.
Encode = Callable[[Sequence[EncoderInput]], Encoding]


@dataclass(eq=False)
class LoadedRuntime:
    """A `Runtime` made of its two parts, which have all weights. `_longest_input` is in tokens.

    `_similarity` is set for bi-encoders whose vectors are compared without the aggregator, `_maxsim` for
    rankers whose token vectors are.
    """

    _encode: Encode
    _aggregate: Aggregate
    _capabilities: Capabilities
    _longest_input: int
    _limit: GroupLimit
    _similarity: Aggregation | None = None
    _maxsim: MaxSimOptions | None = None

    def encode(self, inputs: Sequence[EncoderInput]) -> Encoding:
        """Begin the heavy part. Raises: ValueError if there is no input; OutOfMemory, DeviceLost."""
        # Around the whole call: a padded batch and its features' rows need the host's memory, too.
        with device_failures():
            return self._encode(inputs)

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        """Run the light part. Raises: OutOfMemory if a document alone does not fit; DeviceLost."""
        if self._maxsim is not None and queries is not None:
            return score_by_maxsim(documents, queries, self._maxsim)
        if self._similarity is not None and queries is not None:
            return score_similarities(documents, queries, self._similarity)
        device = torch.device(self._capabilities.device)
        return score_in_groups(self._aggregate, documents, queries, device=device, limit=self._limit)

    def warm_up(self) -> float:
        """Run batches of typical shapes; return the measured speed in tokens per second."""
        return measure_speed(self.encode, self._longest_input, self._capabilities.max_batch_tokens)

    def capabilities(self) -> Capabilities:
        """The runtime's properties."""
        return self._capabilities

    def close(self) -> None:
        """Free the weights."""
        self._encode = self._aggregate = closed
        free_memory(torch.device(self._capabilities.device))


SHORT_INPUT = 16
# The number of measured batches of long inputs, and the time within which another may begin.
LONG_RUNS, LONG_RUNS_S = 3, 10.0

# Numbers of inputs of 15 tokens in the streams that kernels are compiled with: 600 tokens, then 60, because
# FlexAttention has another kernel below 128. 600 tokens are 5 blocks, which is not a size of any model. torch
# takes sizes that are equal by chance for the same, and would recompile for the first real stream.
COMPILED_INPUTS = (40, 4)


def query_input(*, padded: bool) -> EncoderInput:
    """Make an input of 15 tokens; if `padded`, with padding after the query, as by `pad_query_to`."""
    query = (Role.QUERY, Role.PADDING) if padded else (Role.QUERY,)
    front = (Role.SPECIAL, *query, Role.SPECIAL)
    roles = np.array(front + (Role.DOCUMENT,) * 12, dtype=np.int32)
    return EncoderInput(np.ones_like(roles), roles, np.zeros_like(roles))


def measure_speed(encode: Encode, longest_input: int, max_batch_tokens: int) -> float:
    """Run full batches of short and of long inputs; return the best speed seen, in tokens per second.

    The best, not the mean: other work of the machine during a start must not lower the admission limit. Long
    inputs are run again only while that is quick: one of 8,192 tokens may take a minute on a CPU.
    Raises: OutOfMemory if not even one input fits.
    """
    short, long = (
        even_batch(max(1, max_batch_tokens // each), each) for each in (SHORT_INPUT, longest_input)
    )
    fastest = _speed(encode, short)
    started_s = time.perf_counter()
    for _ in range(LONG_RUNS):
        fastest = max(fastest, _speed(encode, long))
        if time.perf_counter() - started_s > LONG_RUNS_S:
            break
    return fastest


def even_batch(rows: int, length: int) -> list[EncoderInput]:
    """Make a batch of equal inputs of this number of tokens."""
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
    # After the handler, which holds the failed batch.
    return _speed(encode, inputs[: len(inputs) // 2])
