"""The benchmark's calls: real documents cut from the embedded corpus, of many chunks or of one."""

import random
from collections.abc import Iterable, Sequence

from farrank_loadtest.targets import Document
from farrank_loadtest.workloads import Call
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput
from farrank_server.indexing.pydoc_corpus import read_pydoc

SHORTEST_TOKENS = 20
LONGEST_TOKENS = 1400

QUERIES = (
    "how do I read a large compressed file line by line",
    "why does a default argument keep its value between calls",
    "run several downloads at the same time and wait for all of them",
    "parse a date with a time zone and convert it to another zone",
    "which exception is raised when a key is missing",
    "make a temporary directory that disappears afterwards",
)


def call_of(query: str, texts: Iterable[str]) -> Call:
    """Make a call of a query and texts."""
    return Call(query, tuple(Document(str(number), text) for number, text in enumerate(texts)))


def make_calls(reader: Reader, count: int, documents: int, seed: int) -> list[Call]:
    """Draw calls whose documents' lengths are uniform between the two bounds."""
    randomly = random.Random(seed)
    corpus = [document.text for document in read_pydoc() if len(document.text) > 12_000]
    return [
        call_of(
            randomly.choice(QUERIES),
            [_cut_text(reader, randomly.choice(corpus), randomly) for _ in range(documents)],
        )
        for _ in range(count)
    ]


def encoder_inputs(reader: Reader, calls: Sequence[Call]) -> list[EncoderInput]:
    """All pairs that the server will make of these calls."""
    inputs: list[EncoderInput] = []
    for call in calls:
        query = reader.read_query(call.query)
        for text in call.texts:
            chunks = reader.split(reader.read_document(text))
            inputs.extend(reader.chunk_input(query, chunk) for chunk in chunks)
    return inputs


def _cut_text(reader: Reader, text: str, randomly: random.Random) -> str:
    """A stretch of a document with a drawn number of tokens."""
    tokens = randomly.randint(SHORTEST_TOKENS, LONGEST_TOKENS)
    start = randomly.randrange(len(text) - 10_000)
    read = reader.read_document(text[start : start + 10_000])
    return text[start : start + int(read.ends[min(tokens, len(read)) - 1])]


SHORTEST_PAIR = 60
LONGEST_PAIR = 512
SPECIAL_TOKENS = 3  # [CLS] query [SEP] document [SEP]

# The longest of QUERIES, and the longest document that makes a pair of 512 tokens with it.
MAX_QUERY_TOKENS = 14
MAX_DOCUMENT_TOKENS = LONGEST_PAIR - SPECIAL_TOKENS - MAX_QUERY_TOKENS

# More characters than so many tokens ever have in this corpus.
_STRETCH = 10_000


def make_pair_calls(reader: Reader, count: int, documents: int, seed: int) -> list[Call]:
    """Draw calls whose pairs' lengths are uniform, as far as whole words allow.

    Only a pair of a shorter query ends before 512 tokens: documents have at most `MAX_DOCUMENT_TOKENS`.
    """
    randomly = random.Random(seed)
    corpus = [document.text for document in read_pydoc() if len(document.text) > _STRETCH + 2_000]
    calls = []
    for _ in range(count):
        query = randomly.choice(QUERIES)
        shortest = SHORTEST_PAIR - SPECIAL_TOKENS - len(reader.tokenizer.read(query, LONGEST_PAIR))
        texts = [_pair_text(reader, randomly.choice(corpus), shortest, randomly) for _ in range(documents)]
        calls.append(call_of(query, texts))
    return calls


def _pair_text(reader: Reader, text: str, shortest: int, randomly: random.Random) -> str:
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
