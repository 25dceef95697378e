"""Block lists contain every needed pair, and no unneeded block."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from farrank_rankers.packed.attention_blocks import BLOCK, BlockLists, BlockPairs, touched_blocks
from farrank_rankers.packed.pattern import Pattern

LENGTHS = st.lists(st.integers(1, 700), min_size=1, max_size=6)
Flags = NDArray[np.bool_]


def unused(batch: Tensor, head: Tensor, asks: Tensor, seen: Tensor) -> Tensor:
    raise AssertionError("block lists come from lengths alone")


def visible(asking: list[int], seen: list[int], pattern: Pattern) -> Flags:
    """Return every pair of tokens according to Pattern's docstring. Shapes: -> (T, U)."""
    pairs = np.zeros((sum(asking), sum(seen)), dtype=bool)
    row = column = 0
    for own, other in zip(asking, seen, strict=True):
        asks, sees = np.arange(own)[:, None], np.arange(other)[None]
        allowed = np.ones((own, other), dtype=bool)
        if pattern.window is not None:
            allowed = abs(asks - sees) <= pattern.window
        if pattern.near is not None:
            allowed = abs(asks - sees) <= pattern.near
            allowed |= (asks < pattern.far_seen) | (asks >= own - pattern.far_seen_last)
            allowed |= (sees < pattern.far_seen) | (sees >= other - pattern.far_seen_last)
        if pattern.causal:
            allowed &= sees <= asks
        pairs[row : row + own, column : column + other] = allowed
        row, column = row + own, column + other
    return pairs


def by_blocks(pairs: Flags) -> NDArray[Any]:
    """Group pairs into blocks. Pairs beyond the streams are unseen. Shapes: (T, U) -> (Q, K, BLOCK²)."""
    rows, columns = (-(-size // BLOCK) for size in pairs.shape)
    padded = np.zeros((rows * BLOCK, columns * BLOCK), dtype=bool)
    padded[: pairs.shape[0], : pairs.shape[1]] = pairs
    return padded.reshape(rows, BLOCK, columns, BLOCK).swapaxes(1, 2).reshape(rows, columns, -1)


def patterns() -> st.SearchStrategy[Pattern]:
    windows = st.builds(
        Pattern,
        causal=st.booleans(),
        sees=st.just(unused),
        near=st.integers(0, 300),
        far_seen=st.integers(0, 200),
        far_seen_last=st.integers(0, 200),
    )
    reach = st.none() | st.integers(0, 400)
    return st.one_of(st.builds(Pattern, causal=st.booleans(), window=reach), windows)


@given(asking=LENGTHS, seen=st.none() | LENGTHS, pattern=patterns())
@example(asking=[128, 256, 1], seen=None, pattern=Pattern())
@example(asking=[512], seen=None, pattern=Pattern(causal=True))
@example(asking=[1431], seen=None, pattern=Pattern(sees=unused, near=128, far_seen=2))
@example(asking=[1431], seen=None, pattern=Pattern(sees=unused, near=1, far_seen=129, far_seen_last=152))
@example(asking=[1431], seen=None, pattern=Pattern(causal=True, sees=unused, near=1))
@example(asking=[1431], seen=None, pattern=Pattern(window=64))
@example(asking=[1431, 300], seen=None, pattern=Pattern(causal=True, window=400))
@example(asking=[2, 2], seen=[600, 600], pattern=Pattern())
@settings(max_examples=150)
def test_blocks_are_those_with_a_pair_that_sees(
    asking: list[int], seen: list[int] | None, pattern: Pattern
) -> None:
    other = asking if seen is None else (seen * len(asking))[: len(asking)]
    touched = touched_blocks(tuple(asking), tuple(other), pattern)
    blocks = by_blocks(visible(asking, other, pattern))
    some, every = blocks.any(axis=-1), blocks.all(axis=-1)
    assert np.array_equal(touched.partly | touched.wholly, some)
    assert not (touched.partly & touched.wholly).any()
    # With a mask, the list does not know which pairs are seen.
    assert np.array_equal(touched.wholly, every & (pattern.sees is None))


def test_a_window_over_long_inputs_leaves_most_blocks_out() -> None:
    lengths = (4096,) * 16
    touched = touched_blocks(lengths, lengths, Pattern(sees=unused, near=256, far_seen=1))
    of_inputs = touched_blocks(lengths, lengths, Pattern())
    assert touched.partly.shape == (512, 512)
    assert of_inputs.wholly.sum() == 16 * 32 * 32
    assert touched.partly.sum() < 0.25 * of_inputs.wholly.sum()


@pytest.mark.parametrize("masked", [False, True])
def test_lists_name_each_rows_blocks_in_order(masked: bool) -> None:
    partly = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=bool)
    wholly = np.array([[0, 1, 0], [0, 1, 1], [0, 0, 0]], dtype=bool)
    lists = BlockLists.of(BlockPairs(partly, wholly), masked, torch.device("cpu"))
    assert lists.partly_counts.tolist() == [[[2, 0, 3]]]
    assert lists.partly.tolist() == [[[[0, 2, 0], [0, 0, 0], [0, 1, 2]]]]
    assert lists.partly.dtype == lists.partly_counts.dtype == torch.int32
    if masked:
        assert lists.wholly is None
        assert lists.wholly_counts is None
    else:
        assert lists.wholly is not None
        assert lists.wholly_counts is not None
        assert lists.wholly_counts.tolist() == [[[1, 2, 0]]]
        assert lists.wholly.tolist() == [[[[1, 0, 0], [1, 2, 0], [0, 0, 0]]]]


def test_lists_have_no_dimension_that_makes_torch_recompile() -> None:
    one = np.ones((1, 1), dtype=bool)
    lists = BlockLists.of(BlockPairs(one, ~one), False, torch.device("cpu"))
    assert lists.partly_counts.tolist() == [[[1, 0]]]
    assert lists.partly.shape == (1, 1, 2, 2)
