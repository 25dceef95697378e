"""DistilBERT: BERT's layers under other names, without segments."""

from typing import Any

from torch import Tensor

from farrank_rankers.backbones.forms import Forms
from farrank_rankers.packed.packed_backbone import LayerParts, PackedArguments, PackedTransformer
from farrank_rankers.packed.stream import TokenStream


class PackedDistilBert(PackedTransformer):
    """A transformers DistilBERT. Shapes: T tokens -> last_hidden_state (T, H)."""

    layers_at = "transformer.layer"

    @classmethod
    def serves(cls, model: Any) -> bool:
        """Whether all layers run without chunking, with projections that can be fused."""
        return super().serves(model) and model.config.chunk_size_feed_forward == 0

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Split a post-norm layer into its parts."""
        own = layer.attention

        def rest(mixed: Tensor, hidden: Tensor) -> Tensor:
            hidden = layer.sa_layer_norm(own.out_lin(mixed) + hidden)  # (T, H)
            return layer.output_layer_norm(layer.ffn(hidden) + hidden)

        return LayerParts([own.q_lin, own.k_lin, own.v_lin], own.n_heads, rest)

    def embedded(self, given: PackedArguments) -> Tensor:
        """Shapes: T tokens -> (T, H)."""
        # Part by part: before transformers 5 the embeddings' module takes no positions.
        parts = self.model.embeddings
        words = parts.word_embeddings(given.stream.input_ids)  # (T, H)
        embedded = words + parts.position_embeddings(given.positions)  # (T, H)
        return parts.dropout(parts.LayerNorm(embedded))  # (T, H)


def pooled_first(model: Any, tokens: TokenStream, hidden: Tensor) -> Tensor:
    """Pass the first token to the classifier's two layers. Shapes: (T, H) -> (P, labels)."""
    return model.classifier(model.pre_classifier(tokens.first(hidden)).relu())


DISTILBERT = Forms(packed=PackedDistilBert, head=pooled_first)
