"""JinaBERT and MosaicBERT: BERT with symmetric ALiBi and gated feed-forwards."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from farrank_rankers.backbones.alibi_bert import JinaAttention, MosaicAttention, head_slopes
from farrank_rankers.packed.packed_backbone import Compile, FusedLinear, PackedOutput, are_plain
from farrank_rankers.packed.pattern import Attention, Pattern, Score
from farrank_rankers.packed.stream import Segments, TokenStream


class PackedAlibiBert:
    """A backbone of `backbones.layers`; where a token stands, its places say, whatever the positions.

    Shapes: T tokens -> last_hidden_state (T, H).
    """

    def __init__(self, model: Any, compile_by: Compile) -> None:
        self._embeddings = model.embeddings
        self._layers = [PackedAlibiLayer(layer, compile_by) for layer in model.layers]
        device = model.embeddings.word.weight.device
        self._slopes = head_slopes(model.config.num_attention_heads, device)  # (A,)
        self._dense = Pattern(slopes=self._slopes)

    @staticmethod
    def serves(model: Any) -> bool:
        """Whether all projections can be fused."""
        return all(
            isinstance(layer.attention, MosaicAttention)
            or (isinstance(layer.attention, JinaAttention) and are_plain(_separate(layer.attention)))
            for layer in model.layers
        )

    def __call__(
        self, stream: TokenStream, positions: Tensor, attention: Attention, *, hidden_states: bool = False
    ) -> PackedOutput:
        """Shapes: positions (T,), which nothing reads -> last_hidden_state (T, H)."""
        hidden: Tensor = self._embeddings(stream.input_ids, stream.token_type_ids)  # (T, H)
        pattern = self._dense if stream.is_dense else Pattern(rescored=by_places(self._slopes, stream.places))
        states = [hidden]
        for layer in self._layers:
            hidden = layer(hidden, stream.segments, attention, pattern)  # (T, H)
            if hidden_states:
                states.append(hidden)
        return PackedOutput(hidden, tuple(states) if hidden_states else None)


def by_places(slopes: Tensor, places: Tensor) -> Score:
    """Lower scores by the places between two tokens where those are more than the tokens between them.

    Shapes: slopes (A,), places (T,).
    """

    def rescored(score: Tensor, batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
        return score - slopes[head] * (places[own] - places[other]).abs()

    return rescored


class PackedAlibiLayer:
    """A post-norm layer with ALiBi. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, compile_by: Compile) -> None:
        own = layer.attention
        self._heads = int(own.heads)
        # MosaicBERT's come as one matrix.
        self._projected: Callable[[Tensor], Tensor] = (
            own.qkv if isinstance(own, MosaicAttention) else FusedLinear(_separate(own))
        )
        self._attention = own
        self._feed_forward = layer.feed_forward
        self._transformed = compile_by(self.transformed)

    def __call__(self, hidden: Tensor, segments: Segments, attention: Attention, pattern: Pattern) -> Tensor:
        """Shapes: (T, H) -> (T, H)."""
        projected = self._projected(hidden).view(len(hidden), 3, self._heads, -1)  # (T, 3, A, D)
        query, key, value = projected.unbind(1)  # (T, A, D) each
        mixed = attention(query, key, value, segments, segments, pattern)  # (T, A, D)
        output: Tensor = self._transformed(mixed.flatten(1), hidden)
        return output

    def transformed(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """Do what comes after attention, token by token. Shapes: (T, H) each -> (T, H)."""
        output: Tensor = self._feed_forward(self._attention.added(mixed, hidden))
        return output


def _separate(attention: JinaAttention) -> list[nn.Linear]:
    return [attention.query, attention.key, attention.value]
