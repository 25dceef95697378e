"""Scores of token vectors (MaxSim), from rows of any codec, without padding.

A document's score is the sum, over the query's vectors, of the largest dot product with any vector of the
document (Khattab & Zaharia, "ColBERT", SIGIR 2020). A long document has the vectors of several windows: the
maximum is that of all of them, and a window's evidence is its own score.

Rows are compared in tiles that fit into the processor's cache, with the rows of several documents in one
product. Tiles end where windows end, so that a document of any length needs the same memory.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from farrank_rankers.family import MaxSimOptions, WindowAggregation
from farrank_rankers.features import Features
from farrank_rankers.token_vectors import NOTHING_TO_COMPARE, are_compared
from farrank_rankers.tokens import Role
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.runtime import DocumentScores
from farrank_runtimes.token_codecs import CodedVectors, FloatProducts, Vectors

_TILE_ROWS = 16_384
# Vectors of documents whose copies are in memory at once.
_GROUP_BYTES = 2**26


def score_token_vectors(
    documents: Sequence[CodedVectors], queries: Sequence[Tensor], aggregation: WindowAggregation = "union"
) -> DocumentScores:
    """Score documents and each of their windows. Documents of one query object share their products.

    `aggregation`: the score is that of all windows' vectors together, the best window's or the first's.
    Shapes: queries (Q, K) each, one for each document.
    Raises: OutOfMemory, DeviceLost.
    """
    found = DocumentScores([0.0] * len(documents), [[]] * len(documents))
    groups: dict[tuple[int, int], list[int]] = {}
    for place, (document, query) in enumerate(zip(documents, queries, strict=True)):
        groups.setdefault((id(query), id(document.codec)), []).append(place)
    with device_failures():
        for places in groups.values():
            some = [documents[place] for place in places]
            maxima = window_maxima(some, queries[places[0]])  # (Q, W)
            counts = np.array([len(document.ends) for document in some])
            starts = np.cumsum(counts) - counts
            scores, of_windows = _aggregated(maxima, starts, counts, aggregation)
            for place, score, own in zip(places, scores.tolist(), of_windows, strict=True):
                found.scores[place], found.chunk_scores[place] = score, own.tolist()
    return found


def compared_vectors(features: Features) -> CodedVectors:
    """Take the vectors of a document that are compared.

    Shapes: features (C, S, K) with roles (C, S), or with windows (T, …).
    """
    if features.windows is not None:
        return CodedVectors(features.vectors, features.windows.ends, features.windows.codec)
    kept = are_compared(features.token_roles)  # (C, S)
    ends: NDArray[np.int64] = kept.sum(dim=1).cumsum(dim=0).cpu().numpy()  # (C,)
    return CodedVectors(features.vectors[kept], ends)


def query_vectors(features: Features) -> Tensor:
    """Take a query's vectors. Shapes: (S, K) with roles (S,) -> (Q, K)."""
    return features.vectors[features.token_roles != Role.PADDING]


def score_by_maxsim(
    documents: Sequence[Features], queries: Sequence[Features], options: MaxSimOptions
) -> DocumentScores:
    """Score documents that were just encoded, and documents of a store. As `Runtime.score`.

    Scores and evidence are those of `families.maxsim.MaxSim`, to rounding. Documents are compared in groups
    of bounded size, because their compared vectors are copied.
    """
    with device_failures():
        vectors = {id(query): query_vectors(query) for query in queries}
    asked = [vectors[id(query)] for query in queries]
    found = DocumentScores([], [])
    for group in _groups(documents):
        with device_failures():
            rows = [compared_vectors(each) for each in documents[group]]
        scored = score_token_vectors(rows, asked[group], options.aggregation)
        found.scores += scored.scores
        found.chunk_scores += scored.chunk_scores
    if options.mean:
        counts = [len(query) for query in asked]
        found.scores = [score / count for score, count in zip(found.scores, counts, strict=True)]
        found.chunk_scores = [
            [score / count for score in own] for own, count in zip(found.chunk_scores, counts, strict=True)
        ]
    return found


def _groups(documents: Sequence[Features]) -> Iterator[slice]:
    """Divide documents, in their order, into groups of at most _GROUP_BYTES; a group has at least one."""
    start = nbytes = 0
    for place, document in enumerate(documents):
        own = document.vectors.nbytes
        if place > start and nbytes + own > _GROUP_BYTES:
            yield slice(start, place)
            start, nbytes = place, 0
        nbytes += own
    if documents:
        yield slice(start, len(documents))


class BestRows(NamedTuple):
    """For each token of the query's own, the most similar vector of a document's that are compared.

    Shapes: rows (Q,), places among those vectors; similarities (Q,).
    """

    rows: NDArray[np.int64]
    similarities: Vectors


def best_rows(
    document: Features, query: Features, options: MaxSimOptions, window_scores: Sequence[float]
) -> BestRows:
    """Find the vectors that decided a document's score, in the windows that counted.

    Special and expansion tokens of the query, which have no characters, are left out.
    Shapes: document and query as for `score_by_maxsim`, window_scores (C,).
    Raises: OutOfMemory, DeviceLost.
    """
    with device_failures():
        coded = compared_vectors(document)
        asked = query.vectors[query.token_roles == Role.QUERY]  # (Q, K)
        begin, end = 0, int(coded.ends[-1])
        if options.aggregation != "union":
            window = int(np.argmax(window_scores)) if options.aggregation == "max" else 0
            begin, end = int(coded.ends[window - 1]) if window else 0, int(coded.ends[window])
        room = min(_TILE_ROWS, max(1, end - begin))
        products = FloatProducts(asked, room) if coded.codec is None else coded.codec.products(asked, room)
        rows = np.full(len(asked), -1, dtype=np.int64)
        best: NDArray[Any] | None = None
        for first in range(begin, end, room):
            compared = products.compare([coded.rows[first : min(first + room, end)]])  # (Q, T)
            place = compared.argmax(axis=1)
            found = np.take_along_axis(compared, place[:, None], axis=1)  # (Q, 1)
            better = np.ones(len(asked), dtype=bool) if best is None else found[:, 0] > best[:, 0]
            best = found if best is None else np.where(better[:, None], found, best)
            rows[better] = place[better] + first
        if best is None:
            return BestRows(rows, np.full(len(asked), NOTHING_TO_COMPARE, dtype=np.float32))
        return BestRows(rows, products.similarities(best)[:, 0])


def window_maxima(documents: Sequence[CodedVectors], query: Tensor) -> Vectors:
    """Find each query vector's largest dot product in each window, −∞ in one without rows.

    The documents have the same codec. Shapes: query (Q, K) -> (Q, windows of all documents).
    """
    codec = documents[0].codec
    bounds = np.concatenate([[0], np.cumsum([len(document.rows) for document in documents])])  # (D + 1,)
    ends = np.concatenate(
        [document.ends + first for document, first in zip(documents, bounds[:-1], strict=True)]
    )  # (W,)
    starts = np.concatenate([[0], ends[:-1]])  # (W,)
    maxima = np.full((len(query), len(ends)), -np.inf, dtype=np.float32)
    room = max(_TILE_ROWS, int((ends - starts).max()))
    products = FloatProducts(query, room) if codec is None else codec.products(query, room)
    first = 0
    while first < len(ends):
        begin = int(starts[first])
        last = int(np.searchsorted(ends, begin + room, side="right"))
        filled = np.flatnonzero(ends[first:last] > starts[first:last]) + first
        if len(filled):
            compared = products.compare(_rows(documents, bounds, begin, int(ends[last - 1])))  # (Q, T)
            best = np.maximum.reduceat(compared, starts[filled] - begin, axis=1)  # (Q, filled windows)
            maxima[:, filled] = products.similarities(best)
        first = last
    return maxima


def _rows(documents: Sequence[CodedVectors], bounds: NDArray[np.int64], begin: int, end: int) -> list[Tensor]:
    """Find the documents' rows from `begin` to `end`, at least one. Shapes: bounds (D + 1,) -> (T, …)."""
    first = int(np.searchsorted(bounds, begin, side="right")) - 1
    last = int(np.searchsorted(bounds, end))
    rows = [document.rows for document in documents[first:last]]
    rows[-1] = rows[-1][: end - int(bounds[last - 1])]
    rows[0] = rows[0][begin - int(bounds[first]) :]
    return rows


def _aggregated(
    maxima: Vectors, starts: NDArray[np.int64], counts: NDArray[np.int64], aggregation: WindowAggregation
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Shapes: (Q, W), D first windows and numbers of windows -> (D,), D times (C,)."""
    of_windows = _summed(maxima)  # (W,)
    if aggregation == "union":
        scores = _summed(np.maximum.reduceat(maxima, starts, axis=1))  # (D,)
    elif aggregation == "max":
        scores = np.maximum.reduceat(of_windows, starts)
    else:
        scores = of_windows[starts]
        alone = np.full_like(of_windows, -np.inf)
        alone[starts] = scores
        of_windows = alone
    return scores, np.split(of_windows, starts[1:])


def _summed(maxima: Vectors) -> NDArray[np.float64]:
    """Add up the query vectors' maxima. Shapes: (Q, N) -> (N,)."""
    total = maxima.sum(axis=0, dtype=np.float64)
    return np.where(np.isneginf(total), NOTHING_TO_COMPARE, total)
