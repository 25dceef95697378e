"""The baseline: the same runtime on the same pairs, sorted by length, with no server around it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farrank_bench.contenders.rounds import Scored
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Runtime


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
    for batch in batches_of(longest_first, runtime.capabilities().max_batch_tokens):
        runtime.encode(batch).rows()
        padded += len(batch) * batch[0].tokens
    return Throughput(len(inputs), time.perf_counter() - started_s, padded / real)


def batches_of(longest_first: Sequence[EncoderInput], max_tokens: int) -> Iterator[Sequence[EncoderInput]]:
    """Divide inputs, longest first, into batches of at most `max_tokens` padded tokens, or of one input."""
    start = 0
    while start < len(longest_first):
        end = start + max(1, max_tokens // longest_first[start].tokens)
        yield longest_first[start:end]
        start = end


@dataclass(frozen=True, slots=True)
class Alone:
    """A runtime and its inputs, tokenized already: one pair is one document."""

    runtime: Runtime
    inputs: Sequence[EncoderInput]

    def score(self) -> Scored:
        """Encode all inputs in full batches sorted by length; the scores are not asked for."""
        found = measure_offline(self.runtime, self.inputs)
        return Scored(found.seconds, found.pairs)
