"""The evidence of a whole ranking, packed into a budget of tokens.

Sentences of the best chunks of all documents compete. A sentence's value is the sum of two standard scores:
of its chunk's evidence among all competing sentences, and of its match with the query. A quarter of its
neighbours' matches counts, too, because an answer often stands beside the sentence that has the question's
words. Sentences are taken greedily by value per token, damped: a short one must not win by its length alone.
One that has the same words as one that was taken is a duplicate, and adds nothing.

Sentences that stand beside each other are joined to one piece. Pieces are in the order of the ranking, and of
the text within a document; they do not overlap.
"""

from collections.abc import Callable, Generator, Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean, pstdev
from typing import NamedTuple

from farrank_rankers.evidence.choosing import DocumentText, ScoredSpan, Span, apart, sentences_of_chunks
from farrank_rankers.evidence.matching import QueryTerms

# Chunks compete that have this many times the budget together, the best first. On whole articles more of them
# change nothing, and each costs time.
COMPETING = 8

# Sentences whose matches are computed at once.
_TOGETHER = 256

# The part of a neighbour's match that counts.
_NEIGHBOUR = 0.25

# Values are divided by this power of the tokens, and some tokens are added: a heading is no answer.
_DAMPED, _ADDED_TOKENS = 0.25, 5

# Above the value of the worst sentence, so that tokens count there, too.
_LEAST_VALUE = 0.05


class RankedDocument(NamedTuple):
    """A document, and its chunks that compete: their characters, and their worth in the ranking."""

    document: DocumentText
    chunks: Sequence[tuple[Span, float]]


class _Candidate(NamedTuple):
    document: int
    start: int
    end: int
    match: float
    worth: float


Taken = dict[_Candidate, int]


def competing(worths: Sequence[Sequence[tuple[Span, float]]], characters: float) -> list[list[int]]:
    """Choose the chunks that compete: the best of all documents, which have these characters together.

    Returns the places of each document's, the best first.
    """
    order = sorted(
        (-worth, document, place)
        for document, chunks in enumerate(worths)
        for place, (_, worth) in enumerate(chunks)
    )
    chosen: list[list[int]] = [[] for _ in worths]
    for _, document, place in order:
        if characters <= 0:
            break
        (start, end), _ = worths[document][place]
        characters -= end - start
        chosen[document].append(place)
    return chosen


def packed(
    query: str, documents: Sequence[RankedDocument], budget: int, count: Callable[[str], int]
) -> Generator[None, None, list[list[ScoredSpan]]]:
    """Pack documents' sentences into a budget of tokens, as `count` counts them. Returns each one's pieces.

    A piece's score is the share of the query that its best sentence has. Documents are in the order of the
    ranking. Yields after each chunk and each sentence.
    """
    texts = [each.document.text for each in documents]
    terms = QueryTerms(query, texts)
    candidates: list[_Candidate] = []
    for number, document in enumerate(documents):
        candidates += yield from _candidates(number, document, terms)
    values = _values(candidates)
    left, seen = budget, set[frozenset[str]]()
    taken: Taken = {}
    sizes = {}
    for each in candidates:
        yield
        sizes[each] = count(texts[each.document][each.start : each.end])
    for each in sorted(sizes, key=lambda one: -values[one] / (sizes[one] + _ADDED_TOKENS) ** _DAMPED):
        if sizes[each] > left:
            continue
        words = frozenset(texts[each.document][each.start : each.end].lower().split())
        if words not in seen:
            seen.add(words)
            taken[each] = sizes[each]
            left -= sizes[each]
    yield
    return (yield from _within(texts, taken, values, budget, count))


def _candidates(
    number: int, ranked: RankedDocument, terms: QueryTerms
) -> Generator[None, None, list[_Candidate]]:
    """Find the sentences of a document's chunks. A sentence is worth as much as the best of its chunks."""
    document, chunks = ranked
    spans: set[Span] = set()
    for its in sentences_of_chunks(document, [span for span, _ in chunks]):
        yield
        spans.update(its)
    found: list[_Candidate] = []
    later, near = sorted(chunks, reverse=True), list[tuple[Span, float]]()
    kept = apart(spans)
    for first in range(0, len(kept), _TOGETHER):
        some = kept[first : first + _TOGETHER]
        matches = terms.values([document.text[start:end] for start, end in some])
        for (start, end), match in zip(some, matches, strict=True):
            yield
            while later and later[-1][0][0] < end:
                near.append(later.pop())
            near = [(span, worth) for span, worth in near if span[1] > start]
            found.append(_Candidate(number, start, end, match, max(worth for _, worth in near)))
    return found


def _values(candidates: Sequence[_Candidate]) -> dict[_Candidate, float]:
    """Add up the standard scores of worth and match, above the least value."""
    matches = [each.match for each in candidates]
    for (place, one), (_, other) in pairwise(enumerate(candidates)):
        if one.document == other.document:
            matches[place] += _NEIGHBOUR * other.match
            matches[place + 1] += _NEIGHBOUR * one.match
    added = [
        worth + match
        for worth, match in zip(
            standard_scores([each.worth for each in candidates]), standard_scores(matches), strict=True
        )
    ]
    least = min(added, default=0.0) - _LEAST_VALUE
    return dict(zip(candidates, (each - least for each in added), strict=True))


def standard_scores(values: Sequence[float]) -> list[float]:
    """Subtract the mean and divide by the standard deviation. Equal values have 0."""
    if not values:
        return []
    mean, deviation = fmean(values), pstdev(values)
    return [(value - mean) / deviation if deviation > 1e-9 else 0.0 for value in values]


def _within(
    texts: Sequence[str],
    taken: Taken,
    values: dict[_Candidate, float],
    budget: int,
    count: Callable[[str], int],
) -> Generator[None, None, list[list[ScoredSpan]]]:
    """Join neighbours. While they exceed the budget together, sentences of least value are dropped.

    Yields after each count. It may take a few: dropped neighbours share the tokens between them.
    """
    while True:
        pieces = _joined(texts, taken)
        excess = -budget + sum(
            count(text[start:end]) for text, its in zip(texts, pieces, strict=True) for start, end, _ in its
        )
        if excess <= 0:
            return pieces
        sizes = _with_margins(texts, taken, count)
        for each in sorted(taken, key=values.__getitem__):
            if excess <= 0:
                break
            del taken[each]
            excess -= sizes[each]
        yield


def _with_margins(texts: Sequence[str], taken: Taken, count: Callable[[str], int]) -> dict[_Candidate, int]:
    """Count the tokens that a piece loses with each sentence: its own, and those to its neighbours."""
    sizes, counted = dict(taken), cache(count)  # rules are alike
    for one, other in pairwise(sorted(taken)):
        between = texts[one.document][one.end : other.start]
        if one.document == other.document and not between.isspace() and not any(map(str.isalnum, between)):
            tokens = counted(between)
            sizes[one] += tokens
            sizes[other] += tokens
    return sizes


def _joined(texts: Sequence[str], taken: Taken) -> list[list[ScoredSpan]]:
    pieces: list[list[ScoredSpan]] = [[] for _ in texts]
    for document, start, end, match, _ in sorted(taken):
        its, text = pieces[document], texts[document]
        if its and not any(map(str.isalnum, text[its[-1].end : start])):
            its[-1] = ScoredSpan(its[-1].start, end, max(its[-1].score, match))
        else:
            its.append(ScoredSpan(start, end, match))
    return pieces
