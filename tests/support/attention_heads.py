"""Streams of random heads, and patterns of every kind over them."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from farrank_rankers.packed.attention_blocks import BLOCK
from farrank_rankers.packed.pattern import CAUSAL, EVERY_TOKEN, Attention, Heads, Pattern
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed.stream import InputBounds

NEAR = 40
CLOSEST = 150


def bounds_of(lengths: tuple[int, ...], device: str = "cpu") -> InputBounds:
    return InputBounds(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device), lengths)


class RandomHeads(Heads):
    """Queries of one stream, keys and values of the same or of another."""

    @classmethod
    def random(
        cls,
        asking: tuple[int, ...],
        seen: tuple[int, ...] | None = None,
        heads: int = 4,
        shared_by: int = 1,
        width: int = 16,
        device: str = "cpu",
    ) -> "RandomHeads":
        own = bounds_of(asking, device)
        other = own if seen is None else bounds_of(seen, device)
        generator = torch.Generator().manual_seed(sum(asking) + heads)

        def drawn(tokens: int, count: int) -> Tensor:
            return torch.randn(tokens, count, width, generator=generator).to(device)

        key, value = (drawn(sum(other.lengths), heads // shared_by) for _ in range(2))
        return cls(drawn(sum(asking), heads), key, value, own, other)

    def through(self, attention: Attention, pattern: Pattern, scale: float | None = None) -> Tensor:
        return attention(self._replace(scale=scale), pattern)

    def plainly(self, pattern: Pattern, scale: float | None = None) -> Tensor:
        return self.through(plain_attention, pattern, scale)

    def to(self, dtype: torch.dtype) -> "RandomHeads":
        query, key, value = (each.to(dtype) for each in (self.query, self.key, self.value))
        return RandomHeads(query, key, value, self.asking, self.seen)


def places_of(bounds: InputBounds) -> Tensor:
    """Shapes: -> (T,) int32, counted from each input's beginning."""
    places = [torch.arange(length, dtype=torch.int32) for length in bounds.lengths]
    return torch.cat(places).to(bounds.offsets.device)


def every_token(heads: Heads) -> Pattern:
    return EVERY_TOKEN


def causal(heads: Heads) -> Pattern:
    return CAUSAL


def alibi(heads: Heads) -> Pattern:
    slopes = 2.0 ** -torch.arange(1, heads.query.shape[1] + 1, device=heads.query.device)
    return Pattern(slopes=slopes)


def causal_alibi(heads: Heads) -> Pattern:
    return Pattern(causal=True, slopes=alibi(heads).slopes)


def near(heads: Heads) -> Pattern:
    """ModernBERT's pattern: only near tokens."""
    return Pattern(window=NEAR)


def causal_near(heads: Heads) -> Pattern:
    return Pattern(causal=True, window=NEAR)


def near_alibi(heads: Heads) -> Pattern:
    """A pattern that no model uses, but that can be expressed."""
    return Pattern(window=NEAR, slopes=alibi(heads).slopes)


def window(heads: Heads) -> Pattern:
    """Longformer's pattern: near tokens, and an input's first three, which see and are seen by all."""
    own, other = places_of(heads.asking), places_of(heads.seen)
    near, first = (torch.tensor(number, device=own.device) for number in (NEAR, 3))

    def sees(batch: Tensor, head: Tensor, asks: Tensor, seen: Tensor) -> Tensor:
        distance = (own[asks] - other[seen]).abs()
        return (distance <= near) | (own[asks] < first) | (other[seen] < first)

    return Pattern(sees=sees, near=NEAR, far_seen=3)


def window_both_ends(heads: Heads) -> Pattern:
    """BigBird's pattern, by tokens: near ones, the first two and the last two."""
    own, other = places_of(heads.asking), places_of(heads.seen)
    device = own.device
    own_ends, other_ends = (
        torch.tensor(each.lengths, dtype=torch.int32, device=device).repeat_interleave(
            torch.tensor(each.lengths, device=device)
        )
        - 2
        for each in (heads.asking, heads.seen)
    )
    near, first = (torch.tensor(number, device=device) for number in (NEAR, 2))

    def sees(batch: Tensor, head: Tensor, asks: Tensor, seen: Tensor) -> Tensor:
        edge = (own[asks] < first) | (own[asks] >= own_ends[asks])
        edge = edge | (other[seen] < first) | (other[seen] >= other_ends[seen])
        return edge | ((own[asks] - other[seen]).abs() <= near)

    return Pattern(sees=sees, near=NEAR, far_seen=2, far_seen_last=2)


def rescored(heads: Heads) -> Pattern:
    """DeBERTa's pattern: a head's bias depends on the distance and the direction between two tokens."""
    own, other = places_of(heads.asking), places_of(heads.seen)
    generator = torch.Generator().manual_seed(5)
    added = torch.randn(heads.query.shape[1], 2 * CLOSEST + 1, generator=generator).to(own.device)
    middle = torch.tensor(CLOSEST, device=own.device)

    def score(score: Tensor, batch: Tensor, head: Tensor, asks: Tensor, seen: Tensor) -> Tensor:
        side = (own[asks] - other[seen]).clamp(-middle, middle) + middle
        return score + added[head, side]

    return Pattern(rescored=score)


MakePattern = Callable[[Heads], Pattern]

# Between streams of different lengths, a window may be empty.
WITHIN_INPUTS: dict[str, MakePattern] = {make.__name__: make for make in (near, causal_near, near_alibi)}

PATTERNS: dict[str, MakePattern] = {
    make.__name__: make
    for make in (every_token, causal, alibi, causal_alibi, window, window_both_ends, rescored)
}


def block_by_block(*arguments: Any, block_mask: BlockMask, **named: Any) -> Any:
    """FlexAttention uncompiled. It reads no block lists, so the mask admits only pairs in listed blocks."""
    partly = _listed(block_mask.kv_num_blocks, block_mask.kv_indices)
    wholly = torch.zeros_like(partly)
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        wholly = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    asked = block_mask.mask_mod

    def mask(batch: Tensor, head: Tensor, asks: Tensor, seen: Tensor) -> Tensor:
        row, column = asks // BLOCK, seen // BLOCK
        return wholly[row, column] | (partly[row, column] & asked(batch, head, asks, seen))

    block_mask.mask_mod = mask
    kernel: Any = flex_attention
    return kernel(*arguments, block_mask=block_mask, **named)


def _listed(counts: Tensor, lists: Tensor) -> Tensor:
    """Shapes: (1, 1, Q), (1, 1, Q, K) -> (Q, K)."""
    blocks = torch.zeros(lists.shape[2:], dtype=torch.bool)
    for row, (count, listed) in enumerate(zip(counts[0, 0].tolist(), lists[0, 0], strict=True)):
        blocks[row, listed[:count].long()] = True
    return blocks
