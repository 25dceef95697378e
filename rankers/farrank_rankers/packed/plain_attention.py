"""Attention input by input, on any device: slow, and the reference for the fast kernels."""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from farrank_rankers.packed.pattern import Heads, Pattern


def plain_attention(heads: Heads, pattern: Pattern) -> Tensor:
    """Attend as `pattern.Attention` says. Shapes: query (T, A, D), key and value (U, B, D) -> (T, A, D)."""
    mixed = []
    starts = (0, 0)
    queries = torch.split(heads.query, list(heads.asking.lengths))
    keys, values = (torch.split(each, list(heads.seen.lengths)) for each in (heads.key, heads.value))
    for q, k, v in zip(queries, keys, values, strict=True):
        mixed.append(_attend(q, k, v, starts, pattern, heads.scale))  # (L, A, D)
        starts = (starts[0] + len(q), starts[1] + len(k))
    return torch.cat(mixed)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, starts: tuple[int, int], pattern: Pattern, scale: float | None
) -> Tensor:
    """Shapes: query (L, A, D), key and value (M, B, D) -> (L, A, D)."""
    shared = query.shape[1] // key.shape[1]
    q = query.transpose(0, 1)  # (A, L, D)
    k = key.repeat_interleave(shared, dim=1).transpose(0, 1)  # (A, M, D)
    v = value.repeat_interleave(shared, dim=1).transpose(0, 1)  # (A, M, D)
    if not pattern.is_general and pattern.slopes is None:
        return scaled_dot_product_attention(q[None], k[None], v[None], is_causal=pattern.causal, scale=scale)[
            0
        ].transpose(0, 1)
    scores = q.float() @ k.float().transpose(1, 2) * (scale or q.shape[-1] ** -0.5)  # (A, L, M)
    mixed = _weights(scores, starts, pattern) @ v.float()  # (A, L, D)
    return mixed.to(query.dtype).transpose(0, 1)


def _weights(scores: Tensor, starts: tuple[int, int], pattern: Pattern) -> Tensor:
    """Turn scores into attention weights as a pattern says. Shapes: (A, L, M) -> (A, L, M)."""
    heads, asking, seen = (torch.arange(size, device=scores.device) for size in scores.shape)
    batch, head = torch.zeros_like(heads[:1]), heads[:, None, None]  # (1,), (A, 1, 1)
    if pattern.slopes is not None:
        distance = (asking[:, None] - seen).abs()  # (L, M)
        scores = scores - pattern.slopes[:, None, None] * distance
    if pattern.causal:
        scores = scores.masked_fill(seen > asking[:, None], -torch.inf)
    own, other = asking[:, None] + starts[0], seen + starts[1]  # (L, 1), (M,), places in the streams
    if pattern.rescored is not None:
        scores = pattern.rescored(scores, batch, head, own, other)  # (A, L, M)
    if pattern.sees is not None:
        scores = scores.masked_fill(~pattern.sees(batch, head, own, other), -torch.inf)
    return scores.softmax(dim=-1)
