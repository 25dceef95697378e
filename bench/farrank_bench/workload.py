"""The benchmark's calls: real documents of 20 to 1,400 tokens, cut from the embedded corpus."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class BenchCall:
    """One request to come."""

    query: str
    texts: tuple[str, ...]


def make_calls(reader: Reader, count: int, documents: int, seed: int) -> list[BenchCall]:
    """Draw calls whose documents' lengths are uniform between the two bounds."""
    randomly = random.Random(seed)
    corpus = [document.text for document in read_pydoc() if len(document.text) > 12_000]
    return [
        BenchCall(
            randomly.choice(QUERIES),
            tuple(_cut(reader, randomly.choice(corpus), randomly) for _ in range(documents)),
        )
        for _ in range(count)
    ]


def encoder_inputs(reader: Reader, calls: Sequence[BenchCall]) -> list[EncoderInput]:
    """All pairs that the server will make of these calls."""
    inputs: list[EncoderInput] = []
    for call in calls:
        query = reader.read_query(call.query)
        for text in call.texts:
            chunks = reader.split(reader.read_document(text))
            inputs.extend(reader.chunk_input(query, chunk) for chunk in chunks)
    return inputs


def _cut(reader: Reader, text: str, randomly: random.Random) -> str:
    """A stretch of a document with a drawn number of tokens."""
    tokens = randomly.randint(SHORTEST_TOKENS, LONGEST_TOKENS)
    start = randomly.randrange(len(text) - 10_000)
    read = reader.read_document(text[start : start + 10_000])
    return text[start : start + int(read.ends[min(tokens, len(read)) - 1])]
