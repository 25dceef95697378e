"""FlexAttention: the kernel for every pattern, including those with their own mask or scores."""

import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.packed.attention_blocks import BLOCK, BlockLists, touched_blocks
from farrank_rankers.packed.pattern import Heads, Mask, Pattern, Score
from farrank_rankers.packed.stream import InputBounds


class KeyRanges(NamedTuple):
    """For each query, its input's range of keys (first, end) and its own place.

    Shapes: (T,) int32 each.
    """

    first: Tensor
    behind: Tensor
    place: Tensor

    @classmethod
    def of(cls, asking: InputBounds, seen: InputBounds) -> "KeyRanges":
        """Compute on the device, without waiting for it."""
        lengths, tokens = asking.offsets.diff(), sum(asking.lengths)

        def of_tokens(of_inputs: Tensor) -> Tensor:
            """Shapes: (P,) -> (T,)."""
            return of_inputs.repeat_interleave(lengths, output_size=tokens)

        first = of_tokens(seen.offsets[:-1])
        own_first = of_tokens(asking.offsets[:-1])
        within = lengths.new_ones(tokens).cumsum(0, dtype=lengths.dtype) - 1 - own_first
        return cls(first, of_tokens(seen.offsets[1:]), first + within)


# Triton's matrix product needs heads at least this wide.
NARROWEST = 16
# The kernel is compiled once for each combination of mask, scores, number of heads, width and dtype. A layer
# beyond torch's own limit of 8 would fail.
COMPILED_FORMS = 64

TRITON = "triton"
# The C compilers that Triton looks for where CC names none.
COMPILERS = ("gcc", "clang", "cc")

Kind = tuple[bool, bool, int | None, int | None, int, int]


def check_compiler() -> None:
    """Make sure that FlexAttention can be compiled on a GPU: by Triton, which calls a C compiler.

    Raises: AttentionAbsent naming what is missing and what helps.
    """
    helps = "or serve padded batches with packing: padded"
    if find_spec(TRITON) is None:
        raise AttentionAbsent(
            f"FlexAttention is compiled by triton, which is not installed: pip install triton, {helps}"
        )
    if os.environ.get("CC") is None and not any(map(shutil.which, COMPILERS)):
        raise AttentionAbsent(
            f"FlexAttention is compiled by Triton, which calls a C compiler: install gcc, {helps}"
        )


@cache
def compiled_kernel() -> Callable[..., Any]:
    """Compile FlexAttention for streams of any length, once for the process.

    As one graph: uncompiled, it would store the scores of every pair of tokens in the stream.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, COMPILED_FORMS)
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


# Shared by layers that attend within the same inputs; it lives as long as their bounds.
Prepared = tuple[KeyRanges, dict[Kind, BlockLists]]


class FlexAttention:
    """Attention of any pattern, in one kernel over the stream; block lists are made once per stream.

    `kernel` is the compiled `flex_attention`; tests on a CPU pass it uncompiled.
    """

    def __init__(self, kernel: Callable[..., Any] | None = None) -> None:
        self._kernel = kernel or compiled_kernel()
        self._prepared: WeakKeyDictionary[InputBounds, WeakKeyDictionary[InputBounds, Prepared]] = (
            WeakKeyDictionary()
        )

    def __call__(self, heads: Heads, pattern: Pattern) -> Tensor:
        """Shapes: query (T, A, D), key and value (U, B, D) -> (T, A, D)."""
        width = heads.query.shape[-1]
        query, key, value, asking, seen, scale = heads.padded(NARROWEST if width < NARROWEST else 1)
        of_asking = self._prepared.setdefault(asking, WeakKeyDictionary())
        if seen not in of_asking:
            of_asking[seen] = (KeyRanges.of(asking, seen), {})
        standing, blocks = of_asking[seen]
        masked = pattern.sees is not None
        far_seen = (pattern.far_seen, pattern.far_seen_last)
        kind = (pattern.causal, masked, pattern.window, pattern.near, *far_seen)
        if kind not in blocks:
            touched = touched_blocks(asking.lengths, seen.lengths, pattern)
            blocks[kind] = BlockLists.of(touched, masked, asking.offsets.device)
        block_mask = BlockMask.from_kv_blocks(
            *blocks[kind],
            BLOCK_SIZE=BLOCK,
            mask_mod=_mask(pattern, standing),
            seq_lengths=(sum(asking.lengths), sum(seen.lengths)),
            # Only gradients need blocks by key.
            compute_q_blocks=False,
        )
        mixed: Tensor = self._kernel(
            *(each.transpose(0, 1)[None] for each in (query, key, value)),  # (1, A, T, D), (1, B, U, D) twice
            score_mod=_score(pattern, standing),
            block_mask=block_mask,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
            # The kernel for short queries would have to be compiled, too, and streams are rarely that short.
            kernel_options={"FORCE_USE_FLEX_ATTENTION": True},
        )  # (1, A, T, D)
        return mixed[0, ..., :width].transpose(0, 1)


def _mask(pattern: Pattern, standing: KeyRanges) -> Mask:
    """Let tokens of one input see each other, as the pattern allows."""
    first, behind, place = standing
    causal, sees = pattern.causal, pattern.sees
    # On the device: a mask compiled for every window must not contain a number.
    window = None if pattern.window is None else place.new_full((), pattern.window)

    def mask(batch: Tensor, head: Tensor, asks: Tensor, seen: Tensor) -> Tensor:
        visible = (seen >= first[asks]) & (seen < behind[asks])
        if causal:
            visible = visible & (seen <= place[asks])
        if window is not None:
            visible = visible & ((place[asks] - seen).abs() <= window)
        return visible if sees is None else visible & sees(batch, head, asks, seen)

    return mask


def _score(pattern: Pattern, standing: KeyRanges) -> Score | None:
    """Change scores by the pattern, first by slopes, then by its own function."""
    slopes, rescored, place = pattern.slopes, pattern.rescored, standing.place
    if slopes is None:
        return rescored

    def score(score: Tensor, batch: Tensor, head: Tensor, asks: Tensor, seen: Tensor) -> Tensor:
        score = score - slopes[head] * (place[asks] - seen).abs()
        return score if rescored is None else rescored(score, batch, head, asks, seen)

    return score
