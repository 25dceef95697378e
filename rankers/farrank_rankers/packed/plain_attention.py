"""Attention input by input, on any device: slow; the reference for the fast kernels."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from farrank_rankers.packed.pattern import Heads, Pattern


def plain_attention(heads: Heads, pattern: Pattern) -> Tensor:
    """Attend as a `pattern.Attention`. Shapes: query (T, A, D), key and value (U, B, D) -> (T, A, D)."""
    mixed = []
    starts = (0, 0)
    queries = torch.split(heads.query, list(heads.asking.lengths))
    keys, values = (torch.split(each, list(heads.seen.lengths)) for each in (heads.key, heads.value))
    shared = heads.query.shape[1] // heads.key.shape[1]
    for query, key, value in zip(queries, keys, values, strict=True):  # (L, A, D), (M, B, D) twice
        q = query.transpose(0, 1)  # (A, L, D)
        k, v = (each.repeat_interleave(shared, dim=1).transpose(0, 1) for each in (key, value))  # (A, M, D)
        if pattern.is_general or pattern.slopes is not None:
            scores = q.float() @ k.float().transpose(1, 2) * (heads.scale or q.shape[-1] ** -0.5)  # (A, L, M)
            found = (_weights(scores, starts, pattern) @ v.float()).to(query.dtype)  # (A, L, D)
        elif pattern.window is not None:
            found = _near(q, k, v, pattern, pattern.window, heads.scale)  # (A, L, D)
        else:
            found = scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=pattern.causal, scale=heads.scale
            )[0]
        mixed.append(found.transpose(0, 1))  # (L, A, D)
        starts = (starts[0] + len(query), starts[1] + len(key))
    return torch.cat(mixed)


# Queries per block, which attends to all keys that one of its queries sees. Smaller blocks need many small
# products, larger ones compute too many unused scores.
BLOCK = 128


def _near(
    query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, window: int, scale: float | None
) -> Tensor:
    """Attend to keys in a window, block by block. Shapes: (A, L, D), (A, M, D) twice -> (A, L, D)."""
    mixed = []
    for start in range(0, query.shape[1], BLOCK):
        some = query[:, start : start + BLOCK]  # (A, B, D)
        first, behind = max(0, start - window), start + BLOCK + window
        asking = torch.arange(start, start + some.shape[1], device=query.device)[:, None]  # (B, 1)
        seen = torch.arange(first, min(behind, key.shape[1]), device=query.device)  # (N,)
        sees = (asking - seen).abs() <= window  # (B, N)
        if pattern.causal:
            sees &= seen <= asking
        near = key[None, :, first:behind], value[None, :, first:behind]  # (1, A, N, D) each
        mixed.append(scaled_dot_product_attention(some[None], *near, attn_mask=sees, scale=scale)[0])
    return torch.cat(mixed, dim=1)


def _weights(scores: Tensor, starts: tuple[int, int], pattern: Pattern) -> Tensor:
    """Convert scores to attention weights by a pattern. Shapes: (A, L, M) -> (A, L, M)."""
    heads, asking, seen = (torch.arange(size, device=scores.device) for size in scores.shape)
    batch, head = torch.zeros_like(heads[:1]), heads[:, None, None]  # (1,), (A, 1, 1)
    if pattern.slopes is not None:
        distance = (asking[:, None] - seen).abs()  # (L, M)
        scores = scores - pattern.slopes[:, None, None] * distance
    own, other = asking[:, None] + starts[0], seen + starts[1]  # (L, 1), (M,), places in the streams
    if pattern.rescored is not None:
        scores = pattern.rescored(scores, batch, head, own, other)  # (A, L, M)
    # After changes of scores, which might make infinite scores finite.
    if pattern.causal:
        scores = scores.masked_fill(seen > asking[:, None], -torch.inf)
    if pattern.window is not None:
        scores = scores.masked_fill((asking[:, None] - seen).abs() > pattern.window, -torch.inf)
    if pattern.sees is not None:
        scores = scores.masked_fill(~pattern.sees(batch, head, own, other), -torch.inf)
    return scores.softmax(dim=-1)
