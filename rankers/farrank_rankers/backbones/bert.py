"""BERT and what is built like it: ELECTRA, RoBERTa and its kin, MiniLM."""

from typing import Any

from torch import Tensor

from farrank_rankers.packed.packed_backbone import Compile, FusedLinear, PackedOutput, are_plain
from farrank_rankers.packed.pattern import EVERY_TOKEN, Attention, Pattern
from farrank_rankers.packed.stream import Segments, TokenStream


class AfterAttention:
    """A post-norm layer's projection, feed-forward part and both norms. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any) -> None:
        self._mixed = layer.attention.output
        self._intermediate = layer.intermediate
        self._output = layer.output

    def __call__(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """Shapes: what attention mixed, and what it saw, (T, H) each -> (T, H)."""
        hidden = self._mixed(mixed, hidden)  # (T, H)
        output: Tensor = self._output(self._intermediate(hidden), hidden)
        return output


class PackedBert:
    """A transformers model of BERT's layers. Shapes: T tokens -> last_hidden_state (T, H)."""

    def __init__(self, model: Any, compile_by: Compile) -> None:
        self._embeddings = model.embeddings
        # ELECTRA's embeddings may be narrower than its layers.
        self._widened = getattr(model, "embeddings_project", None)
        self._layers = [PackedBertLayer(layer, compile_by) for layer in model.encoder.layer]

    @staticmethod
    def serves(model: Any) -> bool:
        """Whether all layers are an encoder's, told of positions by the embeddings alone, and run whole."""
        return all(_is_packable(layer) for layer in model.encoder.layer)

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
        pattern = self.pattern(stream)
        for layer in self._layers:
            hidden = layer(hidden, stream.segments, attention, pattern)  # (T, H)
            if hidden_states:
                states.append(hidden)
        return PackedOutput(hidden, tuple(states) if hidden_states else None)

    def pattern(self, stream: TokenStream) -> Pattern:
        """Say who sees whom in every layer."""
        return EVERY_TOKEN


class PackedBertLayer:
    """A post-norm layer of BERT. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, compile_by: Compile) -> None:
        own = layer.attention.self
        self._heads = int(own.num_attention_heads)
        self._projected = FusedLinear([own.query, own.key, own.value])
        self._transformed = compile_by(AfterAttention(layer).__call__)

    def __call__(self, hidden: Tensor, segments: Segments, attention: Attention, pattern: Pattern) -> Tensor:
        """Shapes: (T, H) -> (T, H)."""
        projected = self._projected(hidden).view(len(hidden), 3, self._heads, -1)  # (T, 3, A, D)
        query, key, value = projected.unbind(1)  # (T, A, D) each
        mixed = attention(query, key, value, segments, segments, pattern)  # (T, A, D)
        output: Tensor = self._transformed(mixed.flatten(1), hidden)
        return output


def _is_packable(layer: Any) -> bool:
    own = layer.attention.self
    # transformers 5 has dropped relative positions, and the attribute with them.
    absolute = getattr(own, "position_embedding_type", "absolute") == "absolute"
    encodes = not layer.is_decoder and not layer.add_cross_attention
    whole = layer.chunk_size_feed_forward == 0
    return absolute and encodes and whole and are_plain([own.query, own.key, own.value])
