"""DistilBERT: BERT's layers under names of their own, and no segments."""

from typing import Any

from torch import Tensor

from farrank_rankers.packed.packed_backbone import Compile, FusedLinear, PackedOutput, are_plain
from farrank_rankers.packed.pattern import EVERY_TOKEN, Attention
from farrank_rankers.packed.stream import Segments, TokenStream


class PackedDistilBert:
    """A transformers DistilBERT. Shapes: T tokens -> last_hidden_state (T, H)."""

    def __init__(self, model: Any, compile_by: Compile) -> None:
        self._embeddings = model.embeddings
        self._layers = [PackedDistilBertLayer(layer, compile_by) for layer in model.transformer.layer]

    @staticmethod
    def serves(model: Any) -> bool:
        """Whether all layers are run whole, with projections that can be fused."""
        return all(
            layer.ffn.chunk_size_feed_forward == 0
            and are_plain([layer.attention.q_lin, layer.attention.k_lin, layer.attention.v_lin])
            for layer in model.transformer.layer
        )

    def __call__(
        self, stream: TokenStream, positions: Tensor, attention: Attention, *, hidden_states: bool = False
    ) -> PackedOutput:
        """Shapes: positions (T,) -> last_hidden_state (T, H)."""
        # Part by part: before transformers 5 the embeddings as a whole take no positions.
        parts = self._embeddings
        embedded = parts.word_embeddings(stream.input_ids) + parts.position_embeddings(positions)  # (T, H)
        hidden: Tensor = parts.dropout(parts.LayerNorm(embedded))  # (T, H)
        states = [hidden]
        for layer in self._layers:
            hidden = layer(hidden, stream.segments, attention)  # (T, H)
            if hidden_states:
                states.append(hidden)
        return PackedOutput(hidden, tuple(states) if hidden_states else None)


class PackedDistilBertLayer:
    """A post-norm layer of DistilBERT. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, compile_by: Compile) -> None:
        own = layer.attention
        self._heads = int(own.n_heads)
        self._projected = FusedLinear([own.q_lin, own.k_lin, own.v_lin])
        self._mixed = own.out_lin
        self._mixed_norm = layer.sa_layer_norm
        self._feed_forward = layer.ffn
        self._norm = layer.output_layer_norm
        self._transformed = compile_by(self.transformed)

    def __call__(self, hidden: Tensor, segments: Segments, attention: Attention) -> Tensor:
        """Shapes: (T, H) -> (T, H)."""
        projected = self._projected(hidden).view(len(hidden), 3, self._heads, -1)  # (T, 3, A, D)
        query, key, value = projected.unbind(1)  # (T, A, D) each
        mixed = attention(query, key, value, segments, segments, EVERY_TOKEN)  # (T, A, D)
        output: Tensor = self._transformed(mixed.flatten(1), hidden)
        return output

    def transformed(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """Do what comes after attention, token by token. Shapes: (T, H) each -> (T, H)."""
        hidden = self._mixed_norm(self._mixed(mixed) + hidden)  # (T, H)
        output: Tensor = self._norm(self._feed_forward(hidden) + hidden)
        return output
