"""The benchmark's calls: real documents cut from the embedded corpus, of many chunks or of one."""

import random
from collections.abc import Iterable, Sequence
from functools import cache

from farrank_bench.offline import Request
from farrank_indexes.pydoc_corpus import read_pydoc
from farrank_loadtest.targets import CandidateDocument
from farrank_loadtest.workloads import Call
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput

QUERIES = (
    "how do I read a large compressed file line by line",
    "why does a default argument keep its value between calls",
    "run several downloads at the same time and wait for all of them",
    "parse a date with a time zone and convert it to another zone",
    "which exception is raised when a key is missing",
    "make a temporary directory that disappears afterwards",
)
# LONGEST_TOKENS tokens have fewer characters than this.
_STRETCH = 10_000

# The bounds for documents that are split.
SHORTEST_TOKENS = 20
LONGEST_TOKENS = 1400

# The bounds for pairs whose document is one chunk.
SHORTEST_PAIR = 60
LONGEST_PAIR = 512
SPECIAL_TOKENS = 3  # [CLS] query [SEP] document [SEP]
# The longest of QUERIES, and the longest document that makes a pair of 512 tokens with it.
MAX_QUERY_TOKENS = 14
MAX_DOCUMENT_TOKENS = LONGEST_PAIR - SPECIAL_TOKENS - MAX_QUERY_TOKENS


@cache
def read_corpus(characters: int) -> tuple[str, ...]:
    """Read those pages of Python's own documentation that have more than `characters` characters."""
    return tuple(document.text for document in read_pydoc() if len(document.text) > characters)


def call_of(query: str, texts: Iterable[str]) -> Call:
    """Make a call of a query and texts."""
    return Call(query, tuple(CandidateDocument(str(number), text) for number, text in enumerate(texts)))


def make_calls(reader: Reader, count: int, documents: int, seed: int, *, pairs: bool = False) -> list[Call]:
    """Draw calls whose documents' lengths are uniform between the two bounds, as far as whole words allow.

    `pairs` draws the lengths of pairs. Documents then have at most `MAX_DOCUMENT_TOKENS`, so that a pair with
    a shorter query has fewer than 512 tokens.
    """
    randomly = random.Random(seed)
    corpus = read_corpus(_STRETCH + 2_000)
    shortest, longest = SHORTEST_TOKENS, MAX_DOCUMENT_TOKENS if pairs else LONGEST_TOKENS
    calls = []
    for _ in range(count):
        query = randomly.choice(QUERIES)
        if pairs:
            shortest = SHORTEST_PAIR - SPECIAL_TOKENS - len(reader.tokenizer.read(query, LONGEST_PAIR))
        texts = [_cut(reader, randomly.choice(corpus), shortest, longest, randomly) for _ in range(documents)]
        calls.append(call_of(query, texts))
    return calls


def encoder_inputs(reader: Reader, calls: Sequence[Call]) -> list[EncoderInput]:
    """Return all pairs that the server makes of these calls."""
    return [item for call in calls for item in Request(reader, call.query, call.texts).inputs]


def _cut(reader: Reader, text: str, shortest: int, longest: int, randomly: random.Random) -> str:
    """Cut a stretch of whole words with a drawn number of tokens, or a few less.

    Words stay whole, because the part of a word may have more tokens than it has within the word.
    """
    while True:
        start = randomly.randrange(len(text) - _STRETCH)
        stretch = text[start : start + _STRETCH]
        read = reader.tokenizer.read(stretch, longest + 1)
        tokens = min(randomly.randint(shortest, longest), len(read) - 1)
        while tokens > shortest and read.ends[tokens - 1] == read.starts[tokens]:
            tokens -= 1
        if read.ends[tokens - 1] < read.starts[tokens]:
            return stretch[: int(read.ends[tokens - 1])]
