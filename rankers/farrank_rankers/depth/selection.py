"""Ranking of chunks at little cost, so that a ranker reads the most promising ones.

The selector is BM25 over the ranker's own token ids, with the idf of all chunks that compete, and a prior
that prefers early chunks.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farrank_rankers.tokens import IntArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Anserini's parameters, as everywhere in this project.
_K1, _B = 0.9, 0.4


class TermCounts(NamedTuple):
    """How often each of a query's distinct tokens stands in each chunk, and the chunks' lengths in tokens.

    Shapes: counts (C, Q), lengths (C,).
    """

    counts: NDArray[np.integer[Any]]
    lengths: IntArray


def count_terms(query: IntArray, chunks: Sequence[IntArray]) -> TermCounts:
    """Count a query's tokens in chunks. Shapes: query (T,), C chunks of (T,) each."""
    terms = np.unique(query)
    lengths = np.array([len(chunk) for chunk in chunks], dtype=np.int32)
    if not len(terms) or not lengths.any():
        return TermCounts(np.zeros((len(chunks), len(terms)), dtype=np.int32), lengths)
    ids = np.concatenate(chunks)
    places = np.searchsorted(terms, ids).clip(max=len(terms) - 1)
    found = np.flatnonzero(terms[places] == ids)
    chunk_of = np.searchsorted(np.cumsum(lengths), found, side="right")
    cells = np.bincount(chunk_of * len(terms) + places[found], minlength=len(chunks) * len(terms))
    smallest = np.min_scalar_type(int(lengths.max()))  # a call keeps these of all its chunks
    return TermCounts(cells.reshape(len(chunks), len(terms)).astype(smallest), lengths)


def bm25(documents: Sequence[TermCounts]) -> Iterator[Floats]:
    """Score the chunks of documents that compete, one document after another.

    The idf is that of all their chunks together.

    Shapes: documents of C chunks each, with the same Q tokens -> (C,) each.
    """
    chunks = sum(len(each.lengths) for each in documents)
    mean_length = max(1.0, sum(int(each.lengths.sum()) for each in documents) / max(1, chunks))
    holding = sum((each.counts > 0).sum(axis=0) for each in documents)  # (Q,)
    idf = np.log(1 + (chunks - holding + 0.5) / (holding + 0.5))
    for each in documents:
        longer = _K1 * (1 - _B + _B * each.lengths / mean_length)  # (C,)
        yield (idf * each.counts / (each.counts + longer[:, None])).sum(axis=1)


def with_prior(documents: Sequence[Floats], prior: float) -> list[Floats]:
    """Divide the scores of chunks that compete by the highest, and add `prior / (1 + place)`.

    Places are counted from 0 in each document. Without a prior the order stays that of the scores.
    Shapes: (C,) each -> (C,) each.
    """
    highest = max((float(each.max()) for each in documents if len(each)), default=0.0) or 1.0
    return [each / highest + prior / np.arange(1, len(each) + 1) for each in documents]


def best_first(scores: Floats) -> Ints:
    """Order chunks by their scores; of equal ones the earlier is first. Shapes: (C,) -> (C,)."""
    order: Ints = np.argsort(-scores, kind="stable")
    return order
