"""JinaBERT and MosaicBERT.

BERT with symmetric ALiBi and gated feed-forwards, both missing from transformers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from farrank_rankers.backbones.alibi_checkpoints import AlibiBertConfig

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


class BackboneOutput(NamedTuple):
    """What transformers' models give; values at padded positions mean nothing, but are finite.

    Shapes: last_hidden_state (P, L, H); hidden_states, if asked for, likewise, of embeddings and layers.
    """

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None = None


class Embeddings(nn.Module):
    """A token's word and segment, added up; where it stands is left to the attention.

    Shapes: input_ids, token_type_ids (P, L) -> (P, L, H).
    """

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.segment = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Shapes: (P, L), (P, L) -> (P, L, H)."""
        embedded: Tensor = self.norm(self.word(input_ids) + self.segment(token_type_ids))  # (P, L, H)
        dropped: Tensor = self.dropout(embedded)
        return dropped


class Attention(nn.Module):
    """Self-attention under a bias, added to its input and normalised (post-norm).

    Shapes: hidden (P, L, H), bias (P, A, L, L) -> (P, L, H).
    """

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.dropout_rate = config.attention_probs_dropout_prob
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make queries, keys and values. Shapes: (P, L, H) -> (P, L, H) each."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Shapes: (P, L, H), (P, A, L, L) -> (P, L, H)."""
        query, key, value = (
            projected.view(*hidden.shape[:2], self.heads, -1).transpose(1, 2)  # (P, A, L, H / A)
            for projected in self.project(hidden)
        )
        dropout = self.dropout_rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, bias, dropout)  # (P, A, L, H / A)
        return self.added(mixed.transpose(1, 2).flatten(-2), hidden)

    def added(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """Add what the heads mixed, side by side, to what they saw. Shapes: (…, H) each -> (…, H)."""
        normed: Tensor = self.norm(self.dropout(self.output(mixed)) + hidden)  # (…, H)
        return normed


class GatedFeedForward(nn.Module):
    """Feed-forward whose hidden units are gated by GELUs (GEGLU), added to its input and normalised.

    One matrix holds both halves: its first F rows make the gates, the other F what the gates let through.
    The GELU is the exact one, without tanh.
    Shapes: (P, L, H) -> (P, L, H).
    Source: Shazeer, arXiv 2002.05202.
    """

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__()
        self.gated = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """Shapes: (P, L, H) -> (P, L, H)."""
        gates, values = self.gated(hidden).chunk(2, dim=-1)  # (P, L, F) each
        units = self.dropout(F.gelu(gates) * values)  # (P, L, F)
        normed: Tensor = self.norm(self.output(units) + hidden)  # (P, L, H)
        return normed


class Layer(nn.Module):
    """Attention, then the feed-forward. Shapes: hidden (P, L, H), bias (P, A, L, L) -> (P, L, H)."""

    def __init__(self, config: AlibiBertConfig, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = GatedFeedForward(config)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Shapes: (P, L, H), (P, A, L, L) -> (P, L, H)."""
        transformed: Tensor = self.feed_forward(self.attention(hidden, bias))
        return transformed


class AlibiBert(nn.Module):
    """A post-norm BERT with ALiBi and gated feed-forwards; it has no pooler.

    Shapes: input_ids, attention_mask, token_type_ids (P, L) -> last_hidden_state (P, L, H).
    """

    def __init__(
        self, config: AlibiBertConfig, make_attention: Callable[[AlibiBertConfig], Attention]
    ) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(
            Layer(config, make_attention(config)) for _ in range(config.num_hidden_layers)
        )
        self.checkpoint_keywords: Mapping[str, Any] | None = None
        self.apply(self._initialise)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        output_hidden_states: bool = False,
    ) -> BackboneOutput:
        """Shapes: (P, L) each -> last_hidden_state (P, L, H)."""
        hidden = self.embeddings(input_ids, token_type_ids)  # (P, L, H)
        bias = attention_bias(attention_mask, self.config.num_attention_heads, hidden.dtype)  # (P, A, L, L)
        states = [hidden]
        for layer in self.layers:
            if self.training and self.checkpoint_keywords is not None:
                hidden = checkpoint(layer, hidden, bias, **self.checkpoint_keywords)  # (P, L, H)
            else:
                hidden = layer(hidden, bias)  # (P, L, H)
            if output_hidden_states:
                states.append(hidden)
        return BackboneOutput(hidden, tuple(states) if output_hidden_states else None)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Mapping[str, Any]) -> None:
        """Compute layers again in the backward pass, by the name that transformers' models have for it."""
        self.checkpoint_keywords = gradient_checkpointing_kwargs

    def get_input_embeddings(self) -> nn.Embedding:
        """Give out the word embeddings, by the name that transformers' models have for it."""
        return self.embeddings.word

    def _initialise(self, module: nn.Module) -> None:
        """Draw matrices from N(0, initializer_range); biases stay 0 and norms 1, as BERT begins."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


class JinaAttention(Attention):
    """Attention with one matrix each for queries, keys and values, as in BERT."""

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config)
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes: (P, L, H) -> (P, L, H) each."""
        return self.query(hidden), self.key(hidden), self.value(hidden)


class JinaBert(AlibiBert):
    """JinaBERT's encoder. Shapes: (P, L) each -> last_hidden_state (P, L, H)."""

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config, JinaAttention)


class MosaicAttention(Attention):
    """Attention with one matrix for queries, keys and values together."""

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config)
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes: (P, L, H) -> (P, L, H) each."""
        query, key, value = self.qkv(hidden).chunk(3, dim=-1)  # (P, L, H) each
        return query, key, value


class MosaicBert(AlibiBert):
    """MosaicBERT's encoder. Shapes: (P, L) each -> last_hidden_state (P, L, H)."""

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config, MosaicAttention)
