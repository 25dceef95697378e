"""Scoring of documents from the features of their chunks, in bounded memory.

Chunks are kept until their document is complete, gathered, and documents are scored in groups that fit.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from farrank_rankers.features import Features, batched, stacked
from farrank_runtimes.device_failures import device_failures
from farrank_runtimes.runtime import DocumentScores, OutOfMemory

# A runtime's aggregator.
# Shapes: features (D, C, …), chunk mask (D, C), query (D, …) -> scores (D,), chunk scores (D, C).
Aggregate = Callable[[Features, Tensor, Features | None], tuple[list[float], list[list[float]]]]


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """The limits of a group of documents, which are padded to the largest of them.

    `feature_bytes` limits their vectors. `positions` limits the aggregator's work: for token vectors it
    counts a document's tokens and the query's for each chunk; for chunk vectors, the square of the chunks,
    because evidence may read a document again without each of them. A document beyond a limit is a separate
    group.
    """

    feature_bytes: int
    positions: int | None = None


def kept(row: Features, *, on_host: bool) -> Features:
    """Copy an input's features to separate memory, until their document is complete.

    A row may be a view that keeps its whole batch in memory. If the device's memory is full, the copy is in
    host memory even without `on_host`.
    Raises: OutOfMemory if the host's memory is full, too; DeviceLost.
    """
    with device_failures():
        if not on_host:
            with suppress(OutOfMemory), device_failures():
                return _apart(row)
        return _apart(row.to("cpu"))


def _apart(row: Features) -> Features:
    """Copy a tensor that is a view of a larger one."""
    shared = row.vectors.untyped_storage().nbytes() > row.vectors.nbytes
    if not shared:
        return row
    return Features(row.vectors.clone(), None if row.roles is None else row.roles.clone())


def gathered(chunks: Sequence[Features]) -> Features:
    """Stack the features of a document's chunks, in host memory if one of them is there.

    Shapes: C times (F,), or (S, F…) with roles (S,) -> (C, F), or (C, S, F…) with roles (C, S).
    Raises: OutOfMemory, DeviceLost.
    """
    with device_failures():
        if len({chunk.vectors.device for chunk in chunks}) > 1:
            chunks = [chunk.to("cpu") for chunk in chunks]
        return stacked(chunks)


def score_in_groups(
    aggregate: Aggregate,
    documents: Sequence[Features],
    queries: Sequence[Features] | None,
    *,
    device: torch.device,
    limit: GroupLimit,
) -> DocumentScores:
    """Score documents as `Runtime.score` does, group by group; a group that does not fit is scored in halves.

    Raises: OutOfMemory if a document alone does not fit; DeviceLost.
    """
    found = DocumentScores([], [])
    waiting = deque(groups(documents, queries, limit))
    while waiting:
        group = waiting.popleft()
        some, asked = documents[group], None if queries is None else queries[group]
        try:
            scores, chunk_scores = _score_together(aggregate, some, asked, device)
        except OutOfMemory:
            if len(some) == 1:
                raise
            middle = group.start + len(some) // 2
            # The halves run after this handler, which holds the tensors of the failed group.
            waiting.extendleft([slice(middle, group.stop), slice(group.start, middle)])
            found.halved_groups += 1
        else:
            found.scores += scores
            found.chunk_scores += [
                row[: len(document.vectors)] for row, document in zip(chunk_scores, some, strict=True)
            ]
    return found


def _score_together(
    aggregate: Aggregate,
    documents: Sequence[Features],
    queries: Sequence[Features] | None,
    device: torch.device,
) -> tuple[list[float], list[list[float]]]:
    with torch.inference_mode(), device_failures():
        # Some may be in host memory: from a cache, or moved there while they missed a chunk.
        features, chunk_mask = batched([document.to(device) for document in documents])
        query = None if queries is None else stacked([each.to(device) for each in queries])
        return aggregate(features, chunk_mask, query)


def groups(
    documents: Sequence[Features], queries: Sequence[Features] | None, limit: GroupLimit
) -> Iterator[slice]:
    """Divide documents, in their order, into groups within a limit; a group has at least one document."""
    start = 0
    largest: tuple[int, ...] = (0, 0, 0, 0)
    for position, document in enumerate(documents):
        size = _size(document, None if queries is None else queries[position])
        grown = tuple(map(max, largest, size))  # the sizes after padding
        if position > start and not _fits(position - start + 1, grown, limit):
            yield slice(start, position)
            start, grown = position, size
        largest = grown
    if documents:
        yield slice(start, len(documents))


def _size(document: Features, query: Features | None) -> tuple[int, ...]:
    """Count chunks, tokens of a chunk, tokens of the query (both 0 for chunk vectors), bytes of a vector."""
    shape, of_tokens = document.vectors.shape, document.roles is not None
    vector_bytes = prod(shape[2 if of_tokens else 1 :]) * document.vectors.element_size()
    query_tokens = 0 if query is None or query.roles is None else len(query.roles)
    return shape[0], shape[1] if of_tokens else 0, query_tokens, vector_bytes


def _fits(documents: int, size: tuple[int, ...], limit: GroupLimit) -> bool:
    chunks, tokens, query_tokens, vector_bytes = size
    if documents * chunks * max(1, tokens) * vector_bytes > limit.feature_bytes:
        return False
    positions = documents * chunks * max(1 + chunks, tokens + query_tokens)
    return limit.positions is None or positions <= limit.positions
