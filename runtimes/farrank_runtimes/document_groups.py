"""From the features of chunks to scores of documents, in memory that is bounded.

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
    """How large a group of documents may be, each padded to the largest of them.

    `feature_bytes` bounds their vectors. `positions` bounds what the aggregator works on: for token vectors,
    a document's tokens with the query's beside those of each chunk; for chunk vectors, the square of its
    chunks, since evidence may read a document again without each of them. A document beyond either is a group
    of its own.
    """

    feature_bytes: int
    positions: int | None = None


def kept(row: Features, *, on_host: bool) -> Features:
    """Copy an input's features into memory of their own, to stay until their document is complete.

    A row may be a view of its whole batch, which would stay with it. If the device has no room, the copy is
    in host memory even without `on_host`.
    Raises: OutOfMemory if the host has no room either; DeviceLost.
    """
    with device_failures():
        if not on_host:
            with suppress(OutOfMemory), device_failures():
                return _apart(row)
        return _apart(row.to("cpu"))


def _apart(row: Features) -> Features:
    """Copy what is a view of more."""
    shared = row.vectors.untyped_storage().nbytes() > row.vectors.nbytes
    if not shared:
        return row
    return Features(row.vectors.clone(), None if row.roles is None else row.roles.clone())


def gathered(chunks: Sequence[Features]) -> Features:
    """Put the features of a document's chunks together, in host memory if one of them is there.

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
    """Score documents as `Runtime.score` does, group by group; one that does not fit is scored in halves.

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
            # They run when this handler, which holds the tensors of the failed group, has ended.
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
    start, largest = 0, _Size()
    for position, document in enumerate(documents):
        size = _Size.of(document, None if queries is None else queries[position])
        grown = largest.or_larger(size)
        if position > start and not grown.fits(position - start + 1, limit):
            yield slice(start, position)
            start, grown = position, size
        largest = grown
    if documents:
        yield slice(start, len(documents))


@dataclass(frozen=True, slots=True)
class _Size:
    """How large a document is; `tokens` (of a chunk) and `query_tokens` are 0 for chunk vectors."""

    chunks: int = 0
    tokens: int = 0
    query_tokens: int = 0
    vector_bytes: int = 0

    @classmethod
    def of(cls, document: Features, query: Features | None) -> "_Size":
        shape, of_tokens = document.vectors.shape, document.roles is not None
        vector = prod(shape[2 if of_tokens else 1 :])
        asked = 0 if query is None or query.roles is None else len(query.roles)
        return cls(shape[0], shape[1] if of_tokens else 0, asked, vector * document.vectors.element_size())

    def or_larger(self, other: "_Size") -> "_Size":
        """Take the larger of each: what padding makes of two documents."""
        return _Size(
            max(self.chunks, other.chunks),
            max(self.tokens, other.tokens),
            max(self.query_tokens, other.query_tokens),
            max(self.vector_bytes, other.vector_bytes),
        )

    def fits(self, documents: int, limit: GroupLimit) -> bool:
        """Whether so many documents of this size are within a limit."""
        chunks = documents * self.chunks
        if chunks * max(1, self.tokens) * self.vector_bytes > limit.feature_bytes:
            return False
        beside = max(1 + self.chunks, self.tokens + self.query_tokens)
        return limit.positions is None or chunks * beside <= limit.positions
