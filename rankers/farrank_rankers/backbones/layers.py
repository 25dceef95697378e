"""What JinaBERT and MosaicBERT share: all but how queries, keys and values are projected."""

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from farrank_rankers.backbones.alibi import attention_bias
from farrank_rankers.backbones.config import AlibiBertConfig


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
            hidden = layer(hidden, bias)  # (P, L, H)
            if output_hidden_states:
                states.append(hidden)
        return BackboneOutput(hidden, tuple(states) if output_hidden_states else None)

    def get_input_embeddings(self) -> nn.Embedding:
        """Give out the word embeddings, by the name that transformers' models have for it."""
        return self.embeddings.word

    def _initialise(self, module: nn.Module) -> None:
        """Draw matrices from N(0, initializer_range); biases stay 0 and norms 1, as BERT begins."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
