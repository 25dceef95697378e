"""BERT and what is built like it: ELECTRA, RoBERTa and its kin, MiniLM."""

from typing import Any

from torch import Tensor

from farrank_rankers.packed.attention.interface import Attention
from farrank_rankers.packed.attention.pattern import EVERY_TOKEN
from farrank_rankers.packed.backbones.fused import FusedLinear
from farrank_rankers.packed.backbones.interface import PackedOutput
from farrank_rankers.packed.stream import Segments, TokenStream


class PackedBert:
    """A transformers model of BERT's layers. Shapes: T tokens -> last_hidden_state (T, H)."""

    def __init__(self, model: Any) -> None:
        self._embeddings = model.embeddings
        # ELECTRA's embeddings may be narrower than its layers.
        self._widened = getattr(model, "embeddings_project", None)
        self._layers = [PackedBertLayer(layer) for layer in model.encoder.layer]

    def __call__(
        self, stream: TokenStream, positions: Tensor, attention: Attention, *, hidden_states: bool = False
    ) -> PackedOutput:
        """Shapes: positions (T,) -> last_hidden_state (T, H)."""
        hidden: Tensor = self._embeddings(
            input_ids=stream.input_ids[None],
            token_type_ids=stream.token_type_ids[None],
            position_ids=positions[None],
        )[0]  # (T, E)
        if self._widened is not None:
            hidden = self._widened(hidden)  # (T, H)
        states = [hidden]
        for layer in self._layers:
            hidden = layer(hidden, stream.segments, attention)  # (T, H)
            if hidden_states:
                states.append(hidden)
        return PackedOutput(hidden, tuple(states) if hidden_states else None)


class PackedBertLayer:
    """A post-norm layer of BERT. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any) -> None:
        own = layer.attention.self
        self._heads = int(own.num_attention_heads)
        self._projected = FusedLinear([own.query, own.key, own.value])
        self._mixed = layer.attention.output
        self._intermediate = layer.intermediate
        self._output = layer.output

    def __call__(self, hidden: Tensor, segments: Segments, attention: Attention) -> Tensor:
        """Shapes: (T, H) -> (T, H)."""
        projected = self._projected(hidden).view(len(hidden), 3, self._heads, -1)  # (T, 3, A, D)
        query, key, value = projected.unbind(1)  # (T, A, D) each
        mixed = attention(query, key, value, segments, segments, EVERY_TOKEN)  # (T, A, D)
        return self.transformed(mixed.flatten(1), hidden)

    def transformed(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """Do what comes after attention, token by token. Shapes: (T, H) each -> (T, H)."""
        hidden = self._mixed(mixed, hidden)  # (T, H)
        output: Tensor = self._output(self._intermediate(hidden), hidden)
        return output
