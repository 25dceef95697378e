"""TinyLLAMA and other Llamas: decoders with rotary positions, each key and value shared by several heads."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.backbones.forms import Forms
from farrank_rankers.packed.packed_backbone import (
    Compile,
    FusedLinear,
    PackedOutput,
    Reading,
    are_plain,
    run_layers,
)
from farrank_rankers.packed.pattern import CAUSAL, Attention, Heads
from farrank_rankers.packed.stream import InputBounds, TokenStream

# Ways to stretch rotary positions by the longest input of a batch: companions would change scores.
BY_THE_BATCH = frozenset({"dynamic", "longrope"})


def without_cache(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call a Llama without keeping keys and values for tokens to come: there are none."""
    return backbone(**inputs, use_cache=False)


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
        fusible = all(are_plain(_projections(layer)) for layer in model.layers)
        return fusible and model.rotary_emb.rope_type not in BY_THE_BATCH

    def __call__(self, given: Reading) -> PackedOutput:
        """Shapes: T tokens -> last_hidden_state (T, H)."""
        hidden: Tensor = self._embeddings(given.stream.input_ids)  # (T, H)
        cosine, sine = self._rotary(hidden[None], given.positions[None])  # (1, T, D) each
        turn = (cosine[0, :, None], sine[0, :, None])  # (T, 1, D) each
        steps = [
            partial(layer, turn=turn, bounds=given.stream.bounds, attention=given.attention)
            for layer in self._layers
        ]
        output = run_layers(steps, given, hidden)
        last: Tensor = self._norm(output.last_hidden_state)  # (T, H)
        # transformers gives the last layer's states behind the norm, the others before it.
        states = output.hidden_states and (*output.hidden_states[:-1], last)
        return PackedOutput(given.stream, last, states)


class PackedLlamaLayer:
    """A pre-norm layer of Llama. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, compile_by: Compile) -> None:
        own = layer.self_attn
        self._size = int(own.head_dim)
        # Queries and keys, which are turned, and values.
        self._heads = [each.out_features // self._size for each in _projections(layer)]
        self._before = layer.input_layernorm
        self._projected = FusedLinear(_projections(layer))
        self._mixed = own.o_proj
        self._between = layer.post_attention_layernorm
        self._feed_forward = layer.mlp
        self._asked = compile_by(self.asked)
        self._transformed = compile_by(self.transformed)

    def __call__(
        self, hidden: Tensor, turn: tuple[Tensor, Tensor], bounds: InputBounds, attention: Attention
    ) -> Tensor:
        """Shapes: hidden (T, H), turn (T, 1, D) each -> (T, H)."""
        query, key, value = self._asked(hidden, *turn)  # (T, A, D), (T, B, D), (T, B, D)
        mixed = attention(Heads(query, key, value, bounds, bounds), CAUSAL)  # (T, A, D)
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


def last_token(model: Any, tokens: TokenStream, hidden: Tensor) -> Tensor:
    """Score the last token whose id is not the padding's, or the first if all are.

    transformers knows padding by its id: a text's own token of that id at an input's end is passed over too.
    Shapes: (T, H) -> (P, labels).
    """
    first = tokens.bounds.offsets[:-1].long()  # (P,)
    places = torch.arange(len(hidden), device=hidden.device)  # (T,)
    pad = model.config.pad_token_id
    if pad is not None:
        places = places.masked_fill(tokens.input_ids == pad, 0)  # (T,)
    last = first.scatter_reduce(0, tokens.inputs.long(), places, "amax")  # (P,)
    logits: Tensor = model.score(hidden.index_select(0, last))
    return logits


def _projections(layer: Any) -> list[nn.Linear]:
    own = layer.self_attn
    return [own.q_proj, own.k_proj, own.v_proj]


LLAMA = Forms(call=without_cache, packed=PackedLlama, head=last_token)
