"""Scores of token vectors (MaxSim), from rows of any codec, without padding.

A document's score is the sum, over the query's vectors, of the largest dot product with any vector of the
document (Khattab & Zaharia, "ColBERT", SIGIR 2020). A long document has the vectors of several windows: the
maximum is that of all of them, and a window's evidence is its own score.

Rows are compared in tiles that fit into the processor's cache with their products. A tile has rows of one
document, in place if its windows lie together, or copies of several short ones. Tiles end where windows end,
so that a document of any length needs the same memory.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farrank_rankers.family import MaxSimOptions
from farrank_rankers.features import Features
from farrank_rankers.token_vectors import NOTHING_TO_COMPARE, are_compared
from farrank_rankers.tokens import Role
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.runtime import DocumentScores
from farrank_runtimes.token_codecs import CodedVectors, FloatProducts, Products, TokenCodec, Vectors

# On a GPU each tile is a wait for the device.
_TILE_ROWS, _TILE_ROWS_OF_DEVICES = 2_048, 16_384
# Up to this many rows between two windows are compared, too, and left out of the maxima: a copy takes longer.
_GAP = 2
# Vectors of documents whose copies are in memory at once.
_GROUP_BYTES = 2**26


def score_token_vectors(
    documents: Sequence[CodedVectors], queries: Sequence[Tensor], options: MaxSimOptions
) -> DocumentScores:
    """Score documents and each of their windows. Documents of one query object share their products.

    Shapes: queries (Q, K) each, one for each document.
    Raises: OutOfMemory, DeviceLost.
    """
    found = DocumentScores([0.0] * len(documents), [[]] * len(documents))
    groups: dict[tuple[int, int], list[int]] = {}
    for place, (document, query) in enumerate(zip(documents, queries, strict=True)):
        groups.setdefault((id(query), id(document.codec)), []).append(place)
    with device_failures():
        for places in groups.values():
            windows = DocumentWindows([documents[place] for place in places])
            scores, of_windows = _scored(windows, queries[places[0]], options)
            bounds = pairwise([*windows.firsts.tolist(), len(of_windows)])
            for place, score, (first, last) in zip(places, scores, bounds, strict=True):
                found.scores[place], found.chunk_scores[place] = score, of_windows[first:last]
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
        vectors = {key: query_vectors(query) for key, query in {id(each): each for each in queries}.items()}
    asked = [vectors[id(query)] for query in queries]
    found = DocumentScores([], [])
    for group in _groups(documents):
        with device_failures():
            rows = [compared_vectors(each) for each in documents[group]]
        scored = score_token_vectors(rows, asked[group], options)
        found.scores += scored.scores
        found.chunk_scores += scored.chunk_scores
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


def _tile_rows(codec: TokenCodec | None, query: Tensor) -> int:
    is_on_processor = query.is_cpu or (codec is not None and codec.name != "fp16")
    return _TILE_ROWS if is_on_processor else _TILE_ROWS_OF_DEVICES


class BestRows(NamedTuple):
    """For each token of the query's own, the most similar vector of a document's that are compared.

    Shapes: rows (Q,), places among those vectors; similarities (Q,).
    """

    rows: NDArray[np.int64]
    similarities: Vectors


def best_rows(
    document: Features, query: Features, options: MaxSimOptions, window_scores: Sequence[float]
) -> BestRows | None:
    """Find the vectors that decided a document's score, in the windows that counted.

    Special and expansion tokens of the query, which have no characters, are left out. Without a vector to
    compare there are no best ones: None.
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
        if options.text_head:
            begin, end = begin + 1, end - 1
        if begin >= end:
            return None
        room = min(_tile_rows(coded.codec, asked), end - begin)
        products = FloatProducts(asked, room) if coded.codec is None else coded.codec.products(asked, room)
        rows = np.empty((len(asked), 0), dtype=np.int64)  # (Q, tiles)
        best: list[NDArray[Any]] = []
        with products.on_threads():
            for first in range(begin, end, room):
                compared = products.compare([coded.rows[first : min(first + room, end)]])  # (Q, T)
                place = compared.argmax(axis=1)[:, None]
                rows = np.append(rows, place + first, axis=1)
                best.append(np.take_along_axis(compared, place, axis=1))
        # Of equal ones the first, as in a tile.
        of_tiles = np.concatenate(best, axis=1)  # (Q, tiles)
        tile = of_tiles.argmax(axis=1)[:, None]
        found = products.similarities(np.take_along_axis(of_tiles, tile, axis=1))
        return BestRows(np.take_along_axis(rows, tile, axis=1)[:, 0], found[:, 0])


class _Tile(NamedTuple):
    """Rows of documents, the places in them where windows start and end in turns, and their number."""

    rows: Sequence[Tensor]
    bounds: NDArray[np.int64]
    total: int


def _some(rows: Tensor, begin: int, end: int) -> Tensor:
    # In torch a slice takes a microsecond, even one of everything.
    return rows if end - begin == rows.shape[0] else rows[begin:end]


class DocumentWindows:
    """The windows of documents of one codec, one after the other.

    Shapes: counts (D,), the windows of each document; firsts (D,), its first one; owners, starts, ends (W,),
    each window's document, and its rows there.
    """

    def __init__(self, documents: Sequence[CodedVectors]) -> None:
        self.documents = documents
        self.counts = np.array([len(document.ends) for document in documents])
        self.firsts = np.cumsum(self.counts) - self.counts
        self.owners = np.repeat(np.arange(len(documents)), self.counts)
        self.ends = np.concatenate([document.ends for document in documents])
        self.starts = np.concatenate([[0], self.ends[:-1]])
        self.starts[self.firsts] = 0

    def products(self, query: Tensor, room: int) -> Products:
        """Prepare products with at most `room` rows at once. Shapes: query (Q, K)."""
        codec = self.documents[0].codec
        return FloatProducts(query, room) if codec is None else codec.products(query, room)

    def tiles(self, windows: NDArray[np.int64], room: int) -> Iterator[_Tile]:
        """Divide the rows of these windows. A tile has some of one document, or all of several.

        It has at most `room` rows, or one window. Shapes: windows (N,), rising, each with rows.
        """
        owners, starts, ends = self.owners[windows], self.starts[windows], self.ends[windows]
        is_same = owners[1:] == owners[:-1]
        is_near = is_same & (starts[1:] - ends[:-1] <= _GAP)
        # Runs of windows are compared with the rows between them, and follow each other.
        heads = np.flatnonzero(np.r_[True, ~is_near])
        counts = np.diff(np.r_[heads, len(starts)])
        lengths = ends[heads + counts - 1] - starts[heads]
        offsets = np.repeat(np.cumsum(lengths) - lengths - starts[heads], counts)
        bounds = np.stack([starts + offsets, ends + offsets], axis=1).ravel()  # (2 N,), in the joined runs
        firsts, lasts = bounds[::2].tolist(), bounds[1::2].tolist()
        run_heads = [*heads.tolist(), len(starts)]
        of_documents = [*np.flatnonzero(np.r_[True, ~is_same]).tolist(), len(starts)]
        of_owner, from_row, to_row = owners.tolist(), starts.tolist(), ends.tolist()
        first = run = document = 0
        while first < len(firsts):
            last = max(first + 1, bisect_right(lasts, firsts[first] + room))
            if last >= of_documents[document + 1]:
                is_whole = of_documents[document] == first
                document = bisect_right(of_documents, last) - 1 if is_whole else document + 1
                last = of_documents[document]
            rows, head = [], first
            while head < last:
                tail = min(run_heads[run + 1], last)
                rows.append(_some(self.documents[of_owner[head]].rows, from_row[head], to_row[tail - 1]))
                run += tail == run_heads[run + 1]
                head = tail
            yield _Tile(rows, bounds[2 * first : 2 * last] - firsts[first], lasts[last - 1] - firsts[first])
            first = last

    def end_rows(self, windows: NDArray[np.int64]) -> list[Tensor]:
        """Take the first and the last row of each of these windows. Shapes: (N,), rising -> (2 n, …) each."""
        owners, heads = np.unique(self.owners[windows], return_index=True)
        ends = torch.from_numpy(np.stack([self.starts[windows], self.ends[windows] - 1], axis=1))  # (N, 2)
        of_documents = ends.tensor_split(heads[1:].tolist())
        rows = [self.documents[owner].rows for owner in owners.tolist()]
        # Twenty times as fast as indexing with brackets, which copies single numbers.
        return [
            its.index_select(0, places.flatten().to(its.device))
            for its, places in zip(rows, of_documents, strict=True)
        ]


def window_maxima(windows: DocumentWindows, query: Tensor, some: NDArray[np.int64]) -> Vectors:
    """Find each query vector's largest dot product in each of some windows, −∞ in one without rows.

    Shapes: query (Q, K), some (N,), rising -> (Q, N).
    """
    maxima = np.full((len(query), len(some)), -np.inf, dtype=np.float32)
    filled = np.flatnonzero(windows.ends[some] > windows.starts[some])
    if not len(filled):
        return maxima
    tiles = list(windows.tiles(some[filled], _tile_rows(windows.documents[0].codec, query)))
    products = windows.products(query, max(tile.total for tile in tiles))
    with products.on_threads():
        best = [
            # The last window ends with the tile. Every second maximum is that between two windows.
            np.maximum.reduceat(products.compare(tile.rows), tile.bounds[:-1], axis=1)[:, ::2]
            for tile in tiles
        ]
    maxima[:, filled] = products.similarities(np.concatenate(best, axis=1))
    return maxima


def _with_texts(windows: DocumentWindows, query: Tensor, most: int | None) -> NDArray[np.float64]:
    """Score windows by their texts' vectors, and by the tokens of the `most` best ones of each document.

    Shapes: query (Q, K) -> (W,).
    """
    filled = np.flatnonzero(windows.ends > windows.starts)
    if not len(filled):
        return np.full(len(windows.ends), NOTHING_TO_COMPARE)
    ends = windows.products(query[[0, -1]], 2 * len(filled))
    texts = ends.similarities(ends.compare(windows.end_rows(filled)))  # (2, 2 N)
    scores = np.full(len(windows.ends), NOTHING_TO_COMPARE)
    scores[filled] = (texts[0, ::2] + texts[1, 1::2]) / 2
    chosen = np.ones(len(scores), dtype=np.bool_)
    if most is not None:
        is_long = windows.counts > most
        for first, count in zip(windows.firsts[is_long], windows.counts[is_long], strict=True):
            worst = np.argpartition(-scores[first : first + count], most - 1)[most:]
            chosen[first + worst] = False
    inner = copy(windows)
    inner.starts, inner.ends = windows.starts + 1, windows.ends - 1
    compared = np.flatnonzero(chosen & (inner.ends > inner.starts))
    if len(query) > 2 and len(compared):
        scores[compared] += window_maxima(inner, query[1:-1], compared).mean(axis=0, dtype=np.float64) / 2
    return scores


def _scored(
    windows: DocumentWindows, query: Tensor, options: MaxSimOptions
) -> tuple[list[float], list[float]]:
    """Score documents and all their windows. Shapes: query (Q, K) -> (D,), (W,)."""
    firsts = windows.firsts
    if options.text_head:
        of_windows = _with_texts(windows, query, options.compared_windows)  # (W,)
        return np.maximum.reduceat(of_windows, firsts).tolist(), of_windows.tolist()
    maxima = window_maxima(windows, query, np.arange(len(windows.ends)))  # (Q, W)
    divisor = len(query) if options.mean else 1
    of_windows = _summed(maxima) / divisor
    if options.aggregation == "union":
        scores = _summed(np.maximum.reduceat(maxima, firsts, axis=1)) / divisor
    elif options.aggregation == "max":
        scores = np.maximum.reduceat(of_windows, firsts)
    else:
        scores = of_windows[firsts]
        of_windows = np.full_like(of_windows, -np.inf)
        of_windows[firsts] = scores
    return scores.tolist(), of_windows.tolist()


def _summed(maxima: Vectors) -> NDArray[np.float64]:
    """Add up the query vectors' maxima. Shapes: (Q, N) -> (N,)."""
    total = maxima.sum(axis=0, dtype=np.float64)
    return np.where(np.isneginf(total), NOTHING_TO_COMPARE, total)
