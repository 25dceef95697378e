"""Calls with a known amount of work: documents that repeat one word, in calls of even and of mixed size."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from farrank_loadtest.targets import CandidateDocument
from farrank_loadtest.workloads import Call

QUERY = "river"
# Each word is one token.
WORD = "sea "

QUERY_TOKENS, SPECIAL_TOKENS = 1, 3
MAX_TOKENS = 64
MIN_TOKENS = MAX_TOKENS // 2 + 1
MEAN_TOKENS = (MIN_TOKENS + MAX_TOKENS) / 2

# Mixed sizes: the documents of small and of large calls, and the share of large calls.
SMALL_DOCUMENTS, LARGE_DOCUMENTS, LARGE_SHARE = 10, 100, 0.2
# Among this many calls, the shares are exact.
_MIXED_CALLS = 10


def call_of(tokens: int, documents: int = 1) -> Call:
    """Make a call of documents whose encoder inputs have `tokens` tokens each."""
    return Call(QUERY, (CandidateDocument("", WORD * (tokens - QUERY_TOKENS - SPECIAL_TOKENS)),) * documents)


def calls_of_many_lengths(seed: int) -> Iterator[Call]:
    """Make calls without end: each length once in random order, then again in another order.

    Any few seconds thus have about the same work, and no replica always gets the same lengths.
    """
    randomly = random.Random(seed)
    calls = [call_of(tokens) for tokens in range(MIN_TOKENS, MAX_TOKENS + 1)]
    while True:
        yield from randomly.sample(calls, len(calls))


def calls_of_mixed_sizes(seed: int) -> Iterator[Call]:
    """Make calls without end: of each ten, eight are small and two are large, in random order."""
    randomly = random.Random(seed)
    large = round(LARGE_SHARE * _MIXED_CALLS)
    calls = [call_of(MAX_TOKENS, LARGE_DOCUMENTS)] * large
    calls += [call_of(MAX_TOKENS, SMALL_DOCUMENTS)] * (_MIXED_CALLS - large)
    while True:
        yield from randomly.sample(calls, len(calls))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Calls of one kind: a function from a seed to calls, their mean tokens, and the documents of a batch."""

    calls: Callable[[int], Iterator[Call]]
    mean_tokens: float
    batch_documents: int = 1


EVEN = Sizes(calls_of_many_lengths, MEAN_TOKENS)
MIXED = Sizes(
    calls_of_mixed_sizes,
    MAX_TOKENS * (LARGE_SHARE * LARGE_DOCUMENTS + (1 - LARGE_SHARE) * SMALL_DOCUMENTS),
    SMALL_DOCUMENTS,
)
