"""The sentences of each document that match a query best, from the chunks that its ranker found best.

Measured on whole articles of SQuAD, words choose the sentence with the answer as often as MaxSim of token
vectors, and more often than the ranker's own score of each sentence or of the chunk without it
(docs/decisions/0072).
"""

from collections.abc import Generator, Sequence, Set
from functools import lru_cache
from typing import NamedTuple

from farrank_rankers.evidence.matching import QueryTerms, lowered
from farrank_rankers.evidence.sentences import sentences

# A document's best chunks from which sentences are chosen, and the sentences that are chosen.
CHUNKS, SENTENCES = 3, 3

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


class ReadDocument(NamedTuple):
    """A document's text, and its chunks' characters, the best chunk first."""

    text: str
    chunks: Sequence[Span]


def chosen(query: str, documents: Sequence[ReadDocument]) -> Generator[None, None, list[list[ScoredSpan]]]:
    """Choose the sentences of each document, best first; yield after each document.

    Sentences that have nothing of the query follow in the order of their chunks.
    """
    texts = []
    for document in documents:
        texts.append(lowered(document.text))
        yield
    terms = QueryTerms(query, texts)
    found = []
    for document, text in zip(documents, texts, strict=True):
        yield
        scored = scored_sentences(terms, document, text, CHUNKS)
        found.append(scored[:SENTENCES])
    return found


def scored_sentences(terms: QueryTerms, document: ReadDocument, text: str, chunks: int) -> list[ScoredSpan]:
    """Find the sentences of a document's best chunks and score them, best first. `text` is lowered."""
    best = [span for span in document.chunks[:chunks] if span[1] > span[0]]
    ranked = []
    for start, end in sentences_of(document.text, best):
        chunk = next(n for n, span in enumerate(best) if _overlap((start, end), span) > 0)
        ranked.append((-terms.value(terms.counts(text, start, end), end - start), chunk, start, end))
    return [ScoredSpan(start, end, -negative) for negative, _, start, end in sorted(ranked)]


def sentences_of(text: str, chunks: Sequence[Span]) -> list[Span]:
    """Find the whole sentences of which chunks hold at least half, in the order of the text.

    If a chunk lies within one sentence, that sentence is taken.
    """
    return apart({span for chunk in chunks for span in sentences_of_chunk(text, chunk)})


def sentences_of_chunk(text: str, chunk: Span) -> list[Span]:
    """Find the sentences of one chunk, as `sentences_of` does."""
    start, end = chunk
    begin = max(0, start - _AROUND)
    # Lines tell where blocks end, so the text begins with a whole one if its beginning is near.
    begin = text.rfind("\n", max(0, begin - _AROUND), begin) + 1 or begin
    around = text[begin : end + _AROUND]
    near = [(begin + first, begin + last) for first, last in _sentences(around)]
    inside = [span for span in near if 2 * _overlap(span, chunk) >= span[1] - span[0]]
    return inside or [span for span in near if _overlap(span, chunk) > 0]


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
