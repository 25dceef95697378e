"""The baseline: the same runtime on the same pairs, sorted by length, with no server around it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farrank_bench.contenders.rounds import Scored
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Runtime

Batch = list[EncoderInput]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Pairs encoded, and how fast; padded over real tokens."""

    pairs: int
    seconds: float
    padding_ratio: float

    @property
    def pairs_per_s(self) -> float:
        """Pairs per second."""
        return self.pairs / self.seconds


def measure_offline(runtime: Runtime, inputs: Sequence[EncoderInput]) -> Throughput:
    """Encode all inputs in batches as full as the runtime likes them, longest first."""
    longest_first = sorted(inputs, key=lambda each: -each.tokens)
    real = sum(each.tokens for each in inputs)
    padded = 0
    started_s = time.perf_counter()
    for batch in batches_in_order(longest_first, runtime.capabilities().max_batch_tokens, padded=True):
        runtime.encode(batch).rows()
        padded += len(batch) * batch[0].tokens
    return Throughput(len(inputs), time.perf_counter() - started_s, padded / real)


def batches_in_order(inputs: Sequence[EncoderInput], max_tokens: int, *, padded: bool) -> Iterator[Batch]:
    """Divide inputs, each batch as full as it can be, or of one input.

    Padded, an input takes as many positions as the longest of its batch.
    """
    batch: Batch = []
    longest = total = 0
    for item in inputs:
        widest = max(longest, item.tokens)
        positions = widest * (len(batch) + 1) if padded else total + item.tokens
        if batch and positions > max_tokens:
            yield batch
            batch, widest, total = [], item.tokens, 0
        batch.append(item)
        longest, total = widest, total + item.tokens
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class Alone:
    """A runtime and its inputs, tokenized already: one pair is one document."""

    runtime: Runtime
    inputs: Sequence[EncoderInput]

    def score(self) -> Scored:
        """Encode all inputs in full batches sorted by length; the scores are not asked for."""
        found = measure_offline(self.runtime, self.inputs)
        return Scored(found.seconds, found.pairs)
