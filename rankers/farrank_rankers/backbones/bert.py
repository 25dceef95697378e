"""BERT and what is built like it: ELECTRA, RoBERTa and its kin, MiniLM."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from farrank_rankers.backbones.forms import Forms, Replacement
from farrank_rankers.packed.packed_backbone import (
    LayerParts,
    PackedArguments,
    PackedTransformer,
    PositionWise,
    are_plain,
)
from farrank_rankers.packed.stream import TokenStream

# The bias of a padded key's score; a token's own key has bias 0. e^-30000 is 0 in every dtype. The bias is
# finite even in float16, so that a row with only padding does not become NaN in any kernel.
PADDED = -30_000.0


def after_attention(layer: Any) -> PositionWise:
    """The parts of a post-norm layer after attention: a projection, the feed-forward, both norms."""

    def rest(mixed: Tensor, hidden: Tensor) -> Tensor:
        hidden = layer.attention.output(mixed, hidden)  # (T, H)
        return layer.output(layer.intermediate(hidden), hidden)

    return rest


class PackedBert(PackedTransformer):
    """A transformers model of BERT's layers. Shapes: T tokens -> last_hidden_state (T, H)."""

    @classmethod
    def serves(cls, model: Any) -> bool:
        """Whether all layers are an encoder's, run whole, and get positions only from the embeddings."""
        return all(_is_packable(layer) for layer in model.encoder.layer)

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Take a post-norm layer apart."""
        own = layer.attention.self
        return LayerParts([own.query, own.key, own.value], own.num_attention_heads, after_attention(layer))

    def embedded(self, given: PackedArguments) -> Tensor:
        """Shapes: T tokens -> (T, H)."""
        hidden = super().embedded(given)  # (T, E)
        # ELECTRA's embeddings may be narrower than its layers.
        widened = getattr(self.model, "embeddings_project", None)
        return hidden if widened is None else widened(hidden)


def attend_padded(
    asking: Tensor, seen: Tensor, layers: Sequence[nn.Module], heads: int, bias: Tensor | None
) -> Tensor:
    """Attend in a padded batch with a layer's projections of queries, keys and values.

    Shapes: asking (P, M, H), seen (P, L, H), bias (P, 1, 1 or M, L) -> (P, M, H).
    """
    query, key, value = (
        layer(states).unflatten(2, (heads, -1)).transpose(1, 2)
        for layer, states in zip(layers, (asking, seen, seen), strict=True)
    )  # (P, A, M, D), (P, A, L, D) twice
    return scaled_dot_product_attention(query, key, value, bias).transpose(1, 2).flatten(2)


def attend_seen(
    hidden: Tensor, layers: Sequence[nn.Module], heads: int, seen: Tensor, added: Tensor | float = 0.0
) -> Tensor:
    """Attend to the tokens that are `seen`, with `added` to their scores.

    Shapes: hidden (P, L, H), seen and added (P, 1 or L, L) -> (P, L, H).
    """
    bias = torch.where(seen, added, PADDED).to(hidden.dtype)[:, None]  # (P, 1, 1 or L, L)
    return attend_padded(hidden, hidden, layers, heads, bias.expand(-1, -1, hidden.shape[1], -1))


class FirstTokenAttention(nn.Module):
    """A layer's attention for only the first token of each input; the signature is that of transformers."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_unused: Any
    ) -> tuple[Tensor, None]:
        """Shapes: (P, L, H), (P, 1, 1 or L, L) -> (P, 1, H)."""
        own, first = self.whole.self, hidden_states[:, :1]  # (P, 1, H)
        mask = None if attention_mask is None else attention_mask[:, :, :1]  # (P, 1, 1, L)
        layers = (own.query, own.key, own.value)
        mixed = attend_padded(first, hidden_states, layers, own.num_attention_heads, mask)  # (P, 1, H)
        return self.whole.output(mixed, first), None


def first_token_layer(model: Any) -> Iterator[Replacement]:
    """Let the last layer compute only each input's first token, (P, 1, H).

    If nothing reads the other tokens' vectors, the layer need not compute their queries, their feed-forward
    and the steps in between: 10 of its 12 matrices of H x H, a seventh of the work of six layers.
    """
    last = model.encoder.layer[-1]
    if _is_packable(last):
        yield Replacement(last, "attention", FirstTokenAttention(last.attention))


def pooled_first(model: Any, tokens: TokenStream, hidden: Tensor) -> Tensor:
    """Pass the first token to the model's pooler, then to the classifier. Shapes: (T, H) -> (P, labels)."""
    first = tokens.first(hidden)[:, None]  # (P, 1, H), inputs of one token
    return model.classifier(model.base_model.pooler(first))


def first_alone(model: Any, tokens: TokenStream, hidden: Tensor) -> Tensor:
    """Pass the first token to the classifier, which has its own layers. Shapes: (T, H) -> (P, labels)."""
    return model.classifier(tokens.first(hidden)[:, None])  # (P, 1, H), inputs of one token


def _is_packable(layer: Any) -> bool:
    # transformers 5 dropped relative positions and this attribute.
    absolute = getattr(layer.attention.self, "position_embedding_type", "absolute") == "absolute"
    encodes = not layer.is_decoder and not layer.add_cross_attention
    return (
        absolute
        and encodes
        and layer.chunk_size_feed_forward == 0
        and are_plain(PackedBert.parts(layer).projections)
    )


BERT = Forms(packed=PackedBert, head=pooled_first, first_tokens=first_token_layer)
ELECTRA = ROBERTA = Forms(packed=PackedBert, head=first_alone, first_tokens=first_token_layer)
