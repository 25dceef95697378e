"""TinyLLAMA and other Llamas: decoders with rotary positions, each key and value shared by several heads."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.backbones.forms import Forms
from farrank_rankers.packed.packed_backbone import (
    Compile,
    LayerParts,
    PackedArguments,
    PackedLayer,
    PackedOutput,
    PackedTransformer,
)
from farrank_rankers.packed.pattern import CAUSAL, Pattern, counting_places
from farrank_rankers.packed.stream import TokenStream

# Stretchings of rotary positions that depend on a batch's longest input: other inputs would change scores.
BY_THE_BATCH = frozenset({"dynamic", "longrope"})


def without_cache(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call a decoder without caching keys and values: no token is generated."""
    return backbone(**inputs, use_cache=False)


class PackedLlamaLayer(PackedLayer):
    """A pre-norm layer of Llama and its kin. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, parts: LayerParts, compile_by: Compile) -> None:
        super().__init__(layer, parts, compile_by)
        own = layer.self_attn
        self._size = int(own.head_dim)
        self._scale: float = own.scaling
        self._pattern = self.pattern(own)
        # Queries and keys, which are rotated, and values.
        self._counts = [each.out_features // self._size for each in parts.projections]
        self._asked = compile_by(self.asked)

    @staticmethod
    def pattern(attention: Any) -> Pattern:
        """Make the pattern: tokens see only earlier ones, and in some layers only near ones."""
        window = getattr(attention, "sliding_window", None)
        # transformers counts the token itself.
        return CAUSAL if window is None else Pattern(causal=True, window=window - 1)

    def mixed(self, hidden: Tensor, given: PackedArguments, shared: Any) -> Tensor:
        """Shapes: hidden (T, H), shared (T, 1, D) twice -> (T, A, D)."""
        pattern, stream = self._pattern, given.stream
        if not stream.is_dense:
            pattern = counting_places(pattern, stream.places)
        return given.attend(self._asked(hidden, *shared), pattern, self._scale)

    def asked(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make queries, keys and values. Shapes: (T, H), (T, 1, D) each -> (T, A, D), (T, B, D) each."""
        projected = self.projected(self.layer.input_layernorm(hidden))  # (T, (A + 2B)·D)
        heads = projected.view(len(hidden), -1, self._size)  # (T, A + 2B, D)
        query, key, value = torch.split(heads, self._counts, dim=1)  # (T, A, D), (T, B, D) each
        query, key = self.normed(query, key)
        return turned(query, cosine, sine), turned(key, cosine, sine), value

    def normed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Norm queries and keys head by head, if the architecture does. Shapes: (T, A or B, D) each."""
        return query, key


class PackedLlama(PackedTransformer):
    """A transformers Llama. Shapes: T tokens -> last_hidden_state (T, H)."""

    layer_class = PackedLlamaLayer
    layers_at = "layers"

    @classmethod
    def serves(cls, model: Any) -> bool:
        """Whether positions depend only on the input, and all projections can be fused."""
        return super().serves(model) and model.rotary_emb.rope_type not in BY_THE_BATCH

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Split a pre-norm layer into its parts."""
        own = layer.self_attn

        def rest(mixed: Tensor, hidden: Tensor) -> Tensor:
            hidden = hidden + own.o_proj(mixed)  # (T, H)
            return hidden + layer.mlp(layer.post_attention_layernorm(hidden))

        return LayerParts([own.q_proj, own.k_proj, own.v_proj], own.config.num_attention_heads, rest)

    def embedded(self, given: PackedArguments) -> Tensor:
        """Shapes: T tokens -> (T, H)."""
        return self.model.embed_tokens(given.stream.input_ids)

    def shared(self, given: PackedArguments, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Turn positions into cosines and sines. Shapes: -> (T, 1, D) twice."""
        cosine, sine = self.model.rotary_emb(hidden[None], given.positions[None])  # (1, T, D) each
        return cosine[0, :, None], sine[0, :, None]

    def __call__(self, given: PackedArguments) -> PackedOutput:
        """Shapes: T tokens -> last_hidden_state (T, H)."""
        output = super().__call__(given)
        last: Tensor = self.model.norm(output.last_hidden_state)  # (T, H)
        # transformers returns the last layer's states after the norm, the others before it.
        states = output.hidden_states and (*output.hidden_states[:-1], last)
        return PackedOutput(given.stream, last, states)


def turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate heads by their tokens' positions, pairing the first half with the second.

    Shapes: heads (T, A, D), cosine and sine (T, 1, D) -> (T, A, D).
    Source: Su et al., "RoFormer", arXiv 2104.09864, with the pairs as in transformers' Llama.
    """
    first, second = heads.chunk(2, dim=-1)  # (T, A, D / 2) each
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine  # (T, A, D)


def last_token(model: Any, tokens: TokenStream, hidden: Tensor) -> Tensor:
    """Score the last token whose id is not the padding's, or the first if all are.

    transformers recognises padding by its id: it also skips a text's own token with that id at the end.
    Shapes: (T, H) -> (P, labels).
    """
    first = tokens.bounds.offsets[:-1].long()  # (P,)
    places = torch.arange(len(hidden), device=hidden.device)  # (T,)
    pad = model.config.pad_token_id
    if pad is not None:
        places = places.masked_fill(tokens.input_ids == pad, 0)  # (T,)
    last = first.scatter_reduce(0, tokens.inputs.long(), places, "amax")  # (P,)
    return model.score(hidden.index_select(0, last))


LLAMA = Forms(call=without_cache, packed=PackedLlama, head=last_token)
