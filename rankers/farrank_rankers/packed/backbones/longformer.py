"""Longformer: tokens see their neighbours and a few global tokens, which see all, by layers of their own.

Source: Beltagy et al., arXiv 2004.05150.
"""

from typing import Any

import torch
from torch import Tensor

from farrank_rankers.packed.attention.interface import Attention
from farrank_rankers.packed.attention.pattern import EVERY_TOKEN, Pattern
from farrank_rankers.packed.backbones.after_attention import AfterAttention
from farrank_rankers.packed.backbones.compiling import Compile
from farrank_rankers.packed.backbones.fused import FusedLinear, are_plain
from farrank_rankers.packed.backbones.global_tokens import (
    GlobalTokens,
    first_tokens,
    frames_and_queries,
)
from farrank_rankers.packed.backbones.interface import PackedOutput
from farrank_rankers.packed.stream import Segments, TokenStream


class PackedLongformer:
    """A transformers Longformer read as it is: [CLS], the query and the first [SEP] are global.

    Shapes: T tokens -> last_hidden_state (T, H).
    """

    def __init__(self, model: Any, compile_by: Compile) -> None:
        self._embeddings = model.embeddings
        self._layers = [PackedLongformerLayer(layer, compile_by) for layer in model.encoder.layer]
        device = model.embeddings.word_embeddings.weight.device
        # Tensors, each (): a mod that is compiled for streams of any length must capture no number.
        self._windows = {layer.window: torch.tensor(layer.window, device=device) for layer in self._layers}

    @staticmethod
    def serves(model: Any) -> bool:
        """Whether all projections can be fused."""
        return all(are_plain(_projections(layer.attention.self)) for layer in model.encoder.layer)

    def global_tokens(self, stream: TokenStream) -> GlobalTokens:
        """Say which tokens are global."""
        return frames_and_queries(stream)

    def __call__(
        self, stream: TokenStream, positions: Tensor, attention: Attention, *, hidden_states: bool = False
    ) -> PackedOutput:
        """Shapes: positions (T,) -> last_hidden_state (T, H)."""
        hidden: Tensor = self._embeddings(
            input_ids=stream.input_ids[None],
            token_type_ids=stream.token_type_ids[None],
            position_ids=positions[None],
        )[0]  # (T, H)
        everywhere = self.global_tokens(stream)
        patterns = {
            window: near_or_global(stream.places, window, reach, everywhere)
            for window, reach in self._windows.items()
        }
        states = [hidden]
        for layer in self._layers:
            hidden = layer(hidden, stream.segments, patterns[layer.window], everywhere, attention)  # (T, H)
            if hidden_states:
                states.append(hidden)
        return PackedOutput(hidden, tuple(states) if hidden_states else None)


class PackedLongformerInClassifier(PackedLongformer):
    """A Longformer below a classifier: its first token alone is global, as in training."""

    def global_tokens(self, stream: TokenStream) -> GlobalTokens:
        """Say which tokens are global."""
        return first_tokens(stream)


class PackedLongformerLayer:
    """A post-norm layer; `window` is how far a token sees to either side. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, compile_by: Compile) -> None:
        own = layer.attention.self
        self.window = int(own.one_sided_attn_window_size)
        self._heads = int(own.num_heads)
        self._projected = FusedLinear(_projections(own))
        self._global_query = own.query_global
        self._transformed = compile_by(AfterAttention(layer).__call__)

    def __call__(
        self,
        hidden: Tensor,
        segments: Segments,
        pattern: Pattern,
        everywhere: GlobalTokens,
        attention: Attention,
    ) -> Tensor:
        """Shapes: (T, H) -> (T, H)."""
        projected = self._projected(hidden).view(len(hidden), 5, self._heads, -1)  # (T, 5, A, D)
        query, key, value, global_key, global_value = projected.unbind(1)  # (T, A, D) each
        mixed = attention(query, key, value, segments, segments, pattern).flatten(1)  # (T, H)
        asking = hidden.index_select(0, everywhere.indices)  # (G, H)
        over_all = attention(
            self._global_query(asking).unflatten(1, (self._heads, -1)),  # (G, A, D)
            global_key,
            global_value,
            everywhere.segments,
            segments,
            EVERY_TOKEN,
        )  # (G, A, D)
        mixed = mixed.index_copy(0, everywhere.indices, over_all.flatten(1))  # (T, H)
        output: Tensor = self._transformed(mixed, hidden)
        return output


def near_or_global(places: Tensor, window: int, reach: Tensor, everywhere: GlobalTokens) -> Pattern:
    """Let tokens see those at most `window` places away, and the global ones.

    Shapes: places (T,), reach (), the window once more.
    """
    is_global = everywhere.flags  # (T,)

    def sees(batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
        return ((places[own] - places[other]).abs() <= reach) | is_global[other]

    return Pattern(sees=sees, near=window, far_seen=everywhere.leading, far_seen_last=everywhere.trailing)


def _projections(own: Any) -> list[Any]:
    return [own.query, own.key, own.value, own.key_global, own.value_global]
