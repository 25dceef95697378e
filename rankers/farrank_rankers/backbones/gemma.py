"""Gemma: Llamas with scaled embeddings; in Gemma 2 attention's scores have a soft cap.

Gemma 3 is read in padded batches; EmbeddingGemma's tokens see later ones, too.
"""

from typing import Any

import torch
from torch import Tensor

from farrank_rankers.backbones.forms import Forms
from farrank_rankers.backbones.llama import PackedLlama, PackedLlamaLayer, last_token, without_cache
from farrank_rankers.packed.packed_backbone import Compile, LayerParts, PackedArguments
from farrank_rankers.packed.pattern import Pattern, Score


def soft_capped(cap: float) -> Score:
    """Limit attention scores softly to -cap … cap.

    Source: Gemma Team, "Gemma 2", arXiv 2408.00118.
    """

    def capped(score: Tensor, batch: Tensor, head: Tensor, asks: Tensor, seen: Tensor) -> Tensor:
        return cap * (score / cap).tanh()

    return capped


class PackedGemma(PackedLlama):
    """A transformers Gemma. Shapes: T tokens -> last_hidden_state (T, H)."""

    def __init__(self, model: Any, compile_by: Compile) -> None:
        super().__init__(model, compile_by)
        embedding = model.embed_tokens
        # transformers 5 scales in the embedding itself. The factor is rounded to the embedding's dtype, as
        # there.
        scale = 1.0 if hasattr(embedding, "embed_scale") else model.config.hidden_size**0.5
        self._embedding_scale = float(torch.tensor(scale, dtype=embedding.weight.dtype))

    def embedded(self, given: PackedArguments) -> Tensor:
        """Scale embeddings by √H. Shapes: T tokens -> (T, H)."""
        return super().embedded(given) * self._embedding_scale


class PackedGemma2Layer(PackedLlamaLayer):
    """A layer of Gemma 2, with a soft cap or a window in its attention. Shapes: (T, H) -> (T, H)."""

    @staticmethod
    def pattern(attention: Any) -> Pattern:
        """Make the pattern of tokens that see each other, with capped scores."""
        cap = attention.attn_logit_softcapping
        pattern = PackedLlamaLayer.pattern(attention)
        return pattern if cap is None else Pattern(True, pattern.window, rescored=soft_capped(cap))


class PackedGemma2(PackedGemma):
    """A transformers Gemma 2. Shapes: T tokens -> last_hidden_state (T, H)."""

    layer_class = PackedGemma2Layer

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Split a layer that norms both inputs and outputs of attention and feed-forward."""
        own = layer.self_attn

        def rest(mixed: Tensor, hidden: Tensor) -> Tensor:
            hidden = hidden + layer.post_attention_layernorm(own.o_proj(mixed))  # (T, H)
            inner = layer.mlp(layer.pre_feedforward_layernorm(hidden))  # (T, H)
            return hidden + layer.post_feedforward_layernorm(inner)

        return LayerParts([own.q_proj, own.k_proj, own.v_proj], own.config.num_attention_heads, rest)


GEMMA = Forms(call=without_cache, packed=PackedGemma, head=last_token)
GEMMA2 = Forms(call=without_cache, packed=PackedGemma2, head=last_token)
GEMMA3 = Forms(call=without_cache)
