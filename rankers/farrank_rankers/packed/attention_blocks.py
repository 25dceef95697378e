"""The blocks of pairs that FlexAttention must compute, found from inputs' lengths, in its own format.

FlexAttention could find them by evaluating the mask for every pair: more than 4 billion in a stream of 65,536
tokens. The host knows the places of the inputs, of which there are few.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farrank_rankers.packed.pattern import Pattern
from farrank_rankers.packed.stream import uploaded

BLOCK = 128

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class BlockPairs(NamedTuple):
    """Blocks of pairs: rows are blocks of queries, columns blocks of keys.

    In blocks of `partly` some pairs see each other, by the mask; in those of `wholly` all do.
    Shapes: (Q, K) each.
    """

    partly: Flags
    wholly: Flags


def touched_blocks(asking: tuple[int, ...], seen: tuple[int, ...], pattern: Pattern) -> BlockPairs:
    """Find the blocks with pairs that `pattern` lets see each other, in inputs of these lengths."""
    asks, sees = np.asarray(asking, dtype=np.int64), np.asarray(seen, dtype=np.int64)
    # Pieces, N of them: inputs are cut where blocks begin, so that each is in one block and in one input.
    offsets = np.concatenate(([0], np.cumsum(asks)))  # (P + 1,)
    cuts = np.union1d(offsets, np.arange(0, offsets[-1], BLOCK))  # (N + 1,)
    inputs = np.searchsorted(offsets, cuts[:-1], side="right") - 1  # (N,)
    blocks = cuts[:-1] // BLOCK  # (N,)
    places, ends = cuts[:-1] - offsets[inputs], cuts[1:] - offsets[inputs]  # (N,) each, within their inputs
    own, other = asks[inputs], sees[inputs]  # (N,) each, the lengths of their inputs
    begins = (np.cumsum(sees) - sees)[inputs]  # (N,), where the keys seen begin in their stream
    shape = (int(-(-asks.sum() // BLOCK)), int(-(-sees.sum() // BLOCK)))
    # The places of its input that a piece may see, a half-open range, which may extend beyond the input.
    nothing = np.zeros_like(other)
    spans = [(nothing, other)]
    if pattern.window is not None:
        spans = [(places - pattern.window, ends + pattern.window)]
    if pattern.near is not None and pattern.sees is not None:
        sees_all = (places < pattern.far_seen) | (ends > own - pattern.far_seen_last)
        near = np.where(sees_all, 0, places - pattern.near), np.where(sees_all, other, ends + pattern.near)
        spans = [near, (nothing, np.minimum(other, pattern.far_seen)), (other - pattern.far_seen_last, other)]
    limit = np.minimum(other, ends) if pattern.causal else other
    touched = np.zeros(shape, dtype=bool)
    for first, end in spans:
        first, end = np.maximum(first, 0), np.minimum(end, limit)
        some = first < end
        behind = (begins + end - 1)[some] // BLOCK + 1
        touched |= _marked(blocks[some], (begins + first)[some] // BLOCK, behind, shape)
    wholly = np.zeros(shape, dtype=bool)
    if pattern.sees is None:
        # The first token of a block sees the fewest tokens after it, the last token the fewest before it.
        first, end = nothing, np.minimum(other, places + 1) if pattern.causal else other
        if pattern.window is not None:
            first = np.maximum(first, ends - 1 - pattern.window)
            end = np.minimum(end, places + 1 + pattern.window)
        first, behind = -(-(begins + first) // BLOCK), (begins + end) // BLOCK
        whole = (ends - places == BLOCK) & (first < behind)
        wholly = _marked(blocks[whole], first[whole], behind[whole], shape)
    return BlockPairs(touched & ~wholly, wholly)


def _marked(rows: Numbers, first: Numbers, behind: Numbers, shape: tuple[int, int]) -> Flags:
    """Mark a range of every row named; a row may be named several times. Shapes: (N,) each -> `shape`."""
    # A row is named at most three times for each of its tokens.
    edges = np.zeros((shape[0], shape[1] + 1), dtype=np.int16)
    np.add.at(edges, (rows, first), 1)
    np.add.at(edges, (rows, behind), -1)
    return np.cumsum(edges, axis=1, dtype=np.int16)[:, :-1] > 0


class BlockLists(NamedTuple):
    """Blocks of each row, ascending, on the device; no `wholly` if a pattern has its own mask.

    Shapes: counts (1, 1, Q), partly, wholly (1, 1, Q, K), int32.
    """

    partly_counts: Tensor
    partly: Tensor
    wholly_counts: Tensor | None
    wholly: Tensor | None

    @classmethod
    def of(cls, touched: BlockPairs, masked: bool, device: torch.device) -> "BlockLists":
        """List blocks, in one upload."""
        kinds = [touched.partly] if masked else [touched.partly, touched.wholly]
        listed = np.stack([_listed(flags) for flags in kinds])  # (1 or 2, Q, 1 + K)
        halves = [
            (each[None, None, :, 0].contiguous(), each[None, None, :, 1:].contiguous())
            for each in uploaded(listed, device)
        ]
        return cls(*halves[0], *(halves[1] if len(halves) > 1 else (None, None)))


def _listed(flags: Flags) -> NDArray[np.int32]:
    """Write each row's count, then its blocks. Shapes: (Q, K) -> (Q, 1 + K), Q and K at least 2."""
    # torch would recompile for dimensions of 1; rows without blocks are ignored.
    rows, columns = (max(2, size) for size in flags.shape)
    listed = np.zeros((rows, 1 + columns), dtype=np.int32)
    row, column = np.nonzero(flags)
    counts = np.bincount(row, minlength=rows)
    listed[:, 0] = counts
    listed[row, 1 + np.arange(len(row)) - (np.cumsum(counts) - counts)[row]] = column
    return listed
