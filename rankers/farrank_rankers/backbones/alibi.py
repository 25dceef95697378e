"""Symmetric ALiBi: the further apart two tokens stand, the less they see of each other, in either direction.

Source: Press, Smith & Lewis, "Train Short, Test Long", ICLR 2022, and their published code, which has the
rule for numbers of heads that are not powers of two. The symmetric form is that of JinaBERT (Günther et al.,
arXiv 2310.19923) and MosaicBERT (Portes et al., NeurIPS 2023).
"""

import math

import torch
from torch import Tensor

# What a padded key adds to its score. Against the 0 that a token's own position adds, e^-30000 is 0 in every
# dtype; it is finite, also in float16, so that no kernel makes NaN of a row of nothing but padding.
PADDED = -30_000.0

# The memory-efficient kernels copy a bias whose rows do not start at multiples of this, once in every layer.
ALIGNMENT = 16


def head_slopes(heads: int, device: torch.device) -> Tensor:
    """Slopes of the heads, float32: 2^(-8/n), 2^(-16/n), … 2^-8 for a power of two n.

    Between two powers of two, n < heads < 2n, the first n heads have the slopes of n heads, and the others
    every second one of the slopes of 2n heads, from the first on: those that fall between.
    Shapes: -> (A,).
    """
    n = 2 ** math.floor(math.log2(heads))
    exponents = torch.arange(1, n + 1, device=device) * (8 / n)  # (n,)
    between = torch.arange(1, 2 * n, 2, device=device)[: heads - n] * (8 / (2 * n))  # (A - n,)
    return torch.exp2(-torch.cat((exponents, between)))  # (A,)


def attention_bias(attention_mask: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """What is added to the attention scores: -slope · |i - j|, or PADDED where key j is padding.

    A pair's bias depends on its distance alone, never on how far its batch is padded. All layers share one.
    Shapes: attention_mask (P, L) -> (P, A, L, L).
    """
    length, device = attention_mask.shape[1], attention_mask.device
    # Not as -(-length // ALIGNMENT): an exported graph divides towards zero.
    aligned = (length + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT  # K ≥ L
    keys = torch.arange(aligned, device=device)  # (K,)
    distance = (keys[:length, None] - keys).abs()  # (L, K)
    alibi = (-head_slopes(heads, device)[:, None, None] * distance).to(dtype)  # (A, L, K)
    real = torch.nn.functional.pad(attention_mask.bool(), (0, aligned - length))  # (P, K)
    bias = torch.where(real[:, None, None, :], alibi, PADDED)  # (P, A, L, K)
    return bias[..., :length]  # (P, A, L, L)
