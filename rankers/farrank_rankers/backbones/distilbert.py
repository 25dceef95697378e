"""DistilBERT: BERT's layers under names of their own, and no segments."""

from typing import Any

from torch import Tensor, nn

from farrank_rankers.backbones.forms import Forms
from farrank_rankers.packed.packed_backbone import (
    Compile,
    PackedLayer,
    PackedOutput,
    Reading,
    are_plain,
    run_packed_layers,
)
from farrank_rankers.packed.pattern import EVERY_TOKEN
from farrank_rankers.packed.stream import TokenStream


class AfterDistilBertAttention:
    """The part of a post-norm layer that comes after attention. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any) -> None:
        self._mixed = layer.attention.out_lin
        self._mixed_norm = layer.sa_layer_norm
        self._feed_forward = layer.ffn
        self._norm = layer.output_layer_norm

    def __call__(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """Shapes: what attention mixed, and what it read, (T, H) each -> (T, H)."""
        hidden = self._mixed_norm(self._mixed(mixed) + hidden)  # (T, H)
        output: Tensor = self._norm(self._feed_forward(hidden) + hidden)
        return output


class PackedDistilBert:
    """A transformers DistilBERT. Shapes: T tokens -> last_hidden_state (T, H)."""

    def __init__(self, model: Any, compile_by: Compile) -> None:
        self._embeddings = model.embeddings
        self._layers = [
            PackedLayer(
                _projections(layer),
                int(layer.attention.n_heads),
                AfterDistilBertAttention(layer).__call__,
                compile_by,
            )
            for layer in model.transformer.layer
        ]

    @staticmethod
    def serves(model: Any) -> bool:
        """Whether all layers are run whole, with projections that can be fused."""
        return all(
            layer.ffn.chunk_size_feed_forward == 0 and are_plain(_projections(layer))
            for layer in model.transformer.layer
        )

    def __call__(self, given: Reading) -> PackedOutput:
        """Shapes: T tokens -> last_hidden_state (T, H), or (P, H) of first tokens."""
        # Part by part: before transformers 5 the embeddings as a whole take no positions.
        parts = self._embeddings
        words = parts.word_embeddings(given.stream.input_ids)  # (T, H)
        embedded = words + parts.position_embeddings(given.positions)  # (T, H)
        hidden: Tensor = parts.dropout(parts.LayerNorm(embedded))  # (T, H)
        return run_packed_layers(self._layers, given, hidden, EVERY_TOKEN)


def pooled_first(model: Any, tokens: TokenStream, hidden: Tensor) -> Tensor:
    """Pass the first token to the classifier's two layers. Shapes: (T, H) -> (P, labels)."""
    logits: Tensor = model.classifier(model.pre_classifier(tokens.first(hidden)).relu())
    return logits


def _projections(layer: Any) -> list[nn.Linear]:
    own = layer.attention
    return [own.q_lin, own.k_lin, own.v_lin]


DISTILBERT = Forms(packed=PackedDistilBert, head=pooled_first)
