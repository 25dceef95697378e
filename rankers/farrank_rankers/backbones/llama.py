"""TinyLLAMA and other Llamas: decoders with rotary positions, each key and value shared by several heads."""

from typing import Any

import torch
from torch import Tensor

from farrank_rankers.packed.packed_backbone import Compile, FusedLinear, PackedOutput, are_plain
from farrank_rankers.packed.pattern import CAUSAL, Attention
from farrank_rankers.packed.stream import Segments, TokenStream

# Ways to stretch rotary positions by the longest input of a batch: companions would change scores.
BY_THE_BATCH = frozenset({"dynamic", "longrope"})


class PackedLlama:
    """A transformers Llama. Shapes: T tokens -> last_hidden_state (T, H)."""

    def __init__(self, model: Any, compile_by: Compile) -> None:
        self._embeddings = model.embed_tokens
        self._rotary = model.rotary_emb
        self._layers = [PackedLlamaLayer(layer, compile_by) for layer in model.layers]
        self._norm = model.norm

    @staticmethod
    def serves(model: Any) -> bool:
        """Whether positions depend on an input alone, and all projections can be fused."""
        own = [layer.self_attn for layer in model.layers]
        fusible = all(are_plain([each.q_proj, each.k_proj, each.v_proj]) for each in own)
        return fusible and model.rotary_emb.rope_type not in BY_THE_BATCH

    def __call__(
        self, stream: TokenStream, positions: Tensor, attention: Attention, *, hidden_states: bool = False
    ) -> PackedOutput:
        """Shapes: positions (T,) -> last_hidden_state (T, H)."""
        hidden: Tensor = self._embeddings(stream.input_ids)  # (T, H)
        cosine, sine = self._rotary(hidden[None], positions[None])  # (1, T, D) each
        turn = (cosine[0, :, None], sine[0, :, None])  # (T, 1, D) each
        states = [hidden]
        for layer in self._layers:
            hidden = layer(hidden, turn, stream.segments, attention)  # (T, H)
            if hidden_states:
                states.append(hidden)
        last: Tensor = self._norm(hidden)  # (T, H)
        # As transformers gives them: the last layer's behind the norm.
        return PackedOutput(last, (*states[:-1], last) if hidden_states else None)


class PackedLlamaLayer:
    """A pre-norm layer of Llama. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, compile_by: Compile) -> None:
        own = layer.self_attn
        self._size = int(own.head_dim)
        # Queries and keys, which are turned, and values.
        self._heads = [each.out_features // self._size for each in (own.q_proj, own.k_proj, own.v_proj)]
        self._before = layer.input_layernorm
        self._projected = FusedLinear([own.q_proj, own.k_proj, own.v_proj])
        self._mixed = own.o_proj
        self._between = layer.post_attention_layernorm
        self._feed_forward = layer.mlp
        self._asked = compile_by(self.asked)
        self._transformed = compile_by(self.transformed)

    def __call__(
        self, hidden: Tensor, turn: tuple[Tensor, Tensor], segments: Segments, attention: Attention
    ) -> Tensor:
        """Shapes: hidden (T, H), turn (T, 1, D) each -> (T, H)."""
        query, key, value = self._asked(hidden, *turn)  # (T, A, D), (T, B, D), (T, B, D)
        mixed = attention(query, key, value, segments, segments, CAUSAL)  # (T, A, D)
        output: Tensor = self._transformed(mixed.flatten(1), hidden)
        return output

    def asked(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make queries, keys and values. Shapes: (T, H), (T, 1, D) each -> (T, A, D), (T, B, D) each."""
        projected = self._projected(self._before(hidden)).view(len(hidden), -1, self._size)  # (T, A + 2B, D)
        query, key, value = torch.split(projected, self._heads, dim=1)  # (T, A, D), (T, B, D) each
        return turned(query, cosine, sine), turned(key, cosine, sine), value

    def transformed(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """Do what comes after attention, token by token. Shapes: (T, A · D), (T, H) -> (T, H)."""
        hidden = hidden + self._mixed(mixed)  # (T, H)
        output: Tensor = hidden + self._feed_forward(self._between(hidden))
        return output


def turned(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn heads by their tokens' positions, their first half against their second.

    Shapes: heads (T, A, D), cosine and sine (T, 1, D) -> (T, A, D).
    Source: Su et al., "RoFormer", arXiv 2104.09864, with the pairs as in transformers' Llama.
    """
    first, second = heads.chunk(2, dim=-1)  # (T, A, D / 2) each
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine  # (T, A, D)
