"""Calls of query-document pairs that every contender reads whole: 60 to 512 tokens, one chunk each."""

import random

from farrank_bench.workload import QUERIES, BenchCall
from farrank_rankers.reader import Reader
from farrank_server.indexing.pydoc_corpus import read_pydoc

SHORTEST_PAIR = 60
LONGEST_PAIR = 512
SPECIAL_TOKENS = 3  # [CLS] query [SEP] document [SEP]

# The longest of QUERIES, and the longest document that makes a pair of 512 tokens with it.
MAX_QUERY_TOKENS = 14
MAX_DOCUMENT_TOKENS = LONGEST_PAIR - SPECIAL_TOKENS - MAX_QUERY_TOKENS

# More characters than so many tokens ever have in this corpus.
_STRETCH = 10_000


def make_pair_calls(reader: Reader, count: int, documents: int, seed: int) -> list[BenchCall]:
    """Draw calls whose pairs' lengths are uniform, as far as whole words allow.

    Only a pair of a shorter query ends before 512 tokens: documents have at most `MAX_DOCUMENT_TOKENS`.
    """
    randomly = random.Random(seed)
    corpus = [document.text for document in read_pydoc() if len(document.text) > _STRETCH + 2_000]
    calls = []
    for _ in range(count):
        query = randomly.choice(QUERIES)
        shortest = SHORTEST_PAIR - SPECIAL_TOKENS - len(reader.tokenizer.read(query, LONGEST_PAIR))
        texts = tuple(_text(reader, randomly.choice(corpus), shortest, randomly) for _ in range(documents))
        calls.append(BenchCall(query, texts))
    return calls


def _text(reader: Reader, text: str, shortest: int, randomly: random.Random) -> str:
    """Cut a stretch of whole words with a drawn number of tokens, or a few less.

    A word that is cut in two may have more tokens than its beginning had.
    """
    while True:
        start = randomly.randrange(len(text) - _STRETCH)
        stretch = text[start : start + _STRETCH]
        read = reader.tokenizer.read(stretch, MAX_DOCUMENT_TOKENS + 1)
        tokens = randomly.randint(shortest, MAX_DOCUMENT_TOKENS)
        while tokens > shortest and read.ends[tokens - 1] == read.starts[tokens]:
            tokens -= 1
        if read.ends[tokens - 1] < read.starts[tokens]:
            return stretch[: int(read.ends[tokens - 1])]
