"""The sentences of each document that match a query best, from the chunks that its ranker found best.

Measured on whole articles of SQuAD, words choose the sentence with the answer as often as MaxSim of token
vectors, and more often than the ranker's own score of each sentence or of the chunk without it
(docs/decisions/0072).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence, Set
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farrank_rankers.evidence.matching import QueryTerms
from farrank_rankers.evidence.sentences import sentences

# A document's best chunks from which sentences are chosen, and the sentences that are chosen.
CHUNKS, SENTENCES = 3, 3

# Documents whose sentences are compared at once.
_TOGETHER = 10

# The characters before and after a chunk in which the ends of its first and last sentences are looked for.
_AROUND = 240

# Texts of at most this length, such as chunks, are remembered with their sentences.
_REMEMBERED_CHARACTERS = 4096

Span = tuple[int, int]


class ScoredSpan(NamedTuple):
    """A sentence: its characters, and the share of the query that it has."""

    start: int
    end: int
    score: float


class DocumentText(NamedTuple):
    """A document's text, and the bounds of its sentences if they are stored. Shape: bounds (S, 2), rising."""

    text: str
    bounds: NDArray[np.uint32] | None = None


class ReadDocument(NamedTuple):
    """A document, and its chunks' characters, the best chunk first."""

    document: DocumentText
    chunks: Sequence[Span]


def chosen(
    terms: QueryTerms, documents: Sequence[ReadDocument]
) -> Generator[None, None, list[list[ScoredSpan]]]:
    """Choose the sentences of each document, best first; yield after each document.

    Sentences that have nothing of the query follow in the order of their chunks. At least one sentence is of
    the best chunk, if that has any.
    """
    found = []
    for first in range(0, len(documents), _TOGETHER):
        some, near = documents[first : first + _TOGETHER], []
        for document, chunks in some:
            yield
            near.append(_near(document, chunks[:CHUNKS]))
        texts = [
            document.text[start:end]
            for (document, _), its in zip(some, near, strict=True)
            for start, end in its
        ]
        values = terms.values(texts)
        for its in near:
            own, values = values[: len(its)], values[len(its) :]
            ranked = sorted(zip([-value for value in own], its.values(), its, strict=True))
            kept = ranked[:SENTENCES]
            if ranked and all(chunk for _, chunk, _ in kept):
                # A reader asks why this document stands here: the best chunk has a sentence, too.
                kept[-1:] = [each for each in ranked if each[1] == 0][:1] or kept[-1:]
            found.append([ScoredSpan(*span, -negative) for negative, _, span in kept])
    return found


def sentences_of(document: DocumentText, chunks: Sequence[Span]) -> list[Span]:
    """Find the whole sentences of which chunks hold at least half, in the order of the text.

    If a chunk lies within one sentence, that sentence is taken.
    """
    return apart({span for its in sentences_of_chunks(document, chunks) for span in its})


def sentences_of_chunks(document: DocumentText, chunks: Sequence[Span]) -> Iterator[Sequence[Span]]:
    """Find the sentences of each chunk, as `sentences_of` does."""
    for chunk, near in zip(chunks, _overlapping(document, chunks), strict=True):
        yield _mostly_inside(near, chunk) if chunk[1] > chunk[0] else ()


def _near(document: DocumentText, chunks: Sequence[Span]) -> dict[Span, int]:
    """Find the sentences of chunks, each with the place of the first chunk that has it."""
    found: dict[Span, int] = {}
    for place, its in enumerate(sentences_of_chunks(document, chunks)):
        for span in its:
            found.setdefault(span, place)
    return found if document.bounds is not None else {span: found[span] for span in apart(found.keys())}


def _mostly_inside(near: Sequence[Span], chunk: Span) -> Sequence[Span]:
    """Drop the first and the last of a chunk's sentences if most of it lies outside, unless none is left."""
    if not near:
        return near
    first, last = _mostly_outside(near[0], chunk), _mostly_outside(near[-1], chunk)
    return near[first : len(near) - last] or near


def _mostly_outside(span: Span, chunk: Span) -> bool:
    return 2 * _overlap(span, chunk) < span[1] - span[0]


def _overlapping(document: DocumentText, chunks: Sequence[Span]) -> Iterator[Sequence[Span]]:
    """Find the sentences that overlap each chunk."""
    if document.bounds is None:
        yield from (_around(document.text, chunk) for chunk in chunks)
        return
    # Starts and ends alternate and rise. A few searches in a buffer take less than numpy's calls.
    places = document.bounds.ravel().data
    for start, end in chunks:
        first, last = bisect_right(places, start) // 2, (bisect_left(places, end) + 1) // 2
        near = iter(places[2 * first : 2 * last].tolist())
        yield list(zip(near, near, strict=True))


def _around(text: str, chunk: Span) -> list[Span]:
    """Find the sentences that overlap a chunk."""
    start, end = chunk
    begin = max(0, start - _AROUND)
    # Lines tell where blocks end, so the text begins with a whole one if its beginning is near.
    begin = text.rfind("\n", max(0, begin - _AROUND), begin) + 1 or begin
    near = ((begin + first, begin + last) for first, last in _sentences(text[begin : end + _AROUND]))
    return [span for span in near if _overlap(span, chunk) > 0]


def _sentences(text: str) -> Sequence[Span]:
    return _remembered(text) if len(text) <= _REMEMBERED_CHARACTERS else sentences(text)


# Queries find the same chunks of an index again and again. 2,048 of them take a few megabytes.
@lru_cache(maxsize=2048)
def _remembered(text: str) -> Sequence[Span]:
    return tuple(sentences(text))


def apart(spans: Set[Span]) -> list[Span]:
    """Sort sentences, and drop parts of them: chunks may show a long one's ends at different places."""
    kept: list[Span] = []
    for span in sorted(spans):
        if kept and span[0] < kept[-1][1]:
            if span[1] - span[0] > kept[-1][1] - kept[-1][0]:
                kept[-1] = span
            continue
        kept.append(span)
    return kept


def _overlap(one: Span, other: Span) -> int:
    return min(one[1], other[1]) - max(one[0], other[0])
