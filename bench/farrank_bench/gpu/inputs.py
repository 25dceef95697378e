"""Encoder inputs of known lengths: tokens are drawn, for what they say costs nothing."""

from collections.abc import Sequence

import numpy as np

from farrank_rankers.chunking import readable_tokens
from farrank_rankers.reader import Reader
from farrank_rankers.tokens import EncoderInput, Role, TokenizedText

SHORTEST = 20
# Behind all special tokens of all vocabularies here.
FIRST_WORD = 200


def full_documents(reader: Reader, count: int, seed: int = 0) -> list[list[EncoderInput]]:
    """Make documents that fill every chunk, and a query that fills its room; the inputs of each."""
    return _documents(reader, [readable_tokens(reader.spec.chunking)] * count, seed)


def mixed_documents(reader: Reader, count: int, seed: int = 0) -> list[list[EncoderInput]]:
    """Make documents of lengths that are uniform from 20 tokens to all that is kept; the inputs of each."""
    longest = readable_tokens(reader.spec.chunking)
    lengths = np.random.default_rng(seed).integers(SHORTEST, longest, count, endpoint=True)
    return _documents(reader, lengths.tolist(), seed)


def real_tokens(item: EncoderInput) -> int:
    """Count tokens, padding inside the query not among them."""
    return int((item.roles != Role.PADDING).sum())


def leading_tokens(item: EncoderInput) -> int:
    """Count the tokens before the document: [CLS], the query and what ends it."""
    first = np.flatnonzero(item.roles == Role.DOCUMENT)[0]
    return int((item.roles[:first] != Role.PADDING).sum())


def _documents(reader: Reader, lengths: Sequence[int], seed: int) -> list[list[EncoderInput]]:
    generator = np.random.default_rng(seed)
    query = _text(generator, reader.spec.max_query_tokens)
    return [
        [reader.chunk_input(query, chunk) for chunk in reader.split(_text(generator, length))]
        for length in lengths
    ]


def _text(generator: np.random.Generator, length: int) -> TokenizedText:
    ids = generator.integers(FIRST_WORD, 30_000, length, dtype=np.int32)
    places = np.arange(length, dtype=np.int32)
    return TokenizedText(ids, places, places + 1, characters_cut=0, total_tokens=length)
