"""Longformer's and BigBird's sparse attention as a masked matrix of all pairs, for graphs to be traced.

transformers takes lengths apart in Python and looks at masks' values, which no graph with a length of its own
can hold. All pairs under a mask give the same vectors; what they cost grows with the square of the length.

Sources: Beltagy et al., arXiv 2004.05150; Zaheer et al., NeurIPS 2020.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from farrank_rankers.backbones.alibi_bert import PADDED
from farrank_rankers.backbones.big_bird import shortest_sparse_input


@contextmanager
def dense_attention(backbone: nn.Module) -> Iterator[None]:
    """Let Longformer and sparse BigBird attend densely for a while; all others stay as they are.

    For inference: nothing is dropped out, and BigBird has the blocks that it has in evaluation.
    """
    model: Any = getattr(backbone, "base_model", backbone)
    with ExitStack() as restore:
        if getattr(model, "attention_type", None) == "block_sparse":
            for layer in model.encoder.layer:
                sparse = layer.attention.self
                _change(restore, layer.attention, "self", DenseBigBird(sparse, model.config))
                _change(restore, layer.attention, "attention_type", "original_full")
            _change(restore, model, "attention_type", "original_full")
        elif getattr(model.config, "model_type", None) == "longformer":
            for layer in model.encoder.layer:
                _change(restore, layer.attention, "self", DenseLongformer(layer.attention.self))
            model._pad_to_window_size = _unpadded
            restore.callback(delattr, model, "_pad_to_window_size")
        yield


class DenseLongformer(nn.Module):
    """A layer's attention: each token sees its neighbours and the global ones, which see all tokens.

    It is called by the names of transformers' own. attention_mask is positive for global tokens, negative for
    padding.
    Shapes: hidden_states (P, L, H), attention_mask (P, L) -> (P, L, H).
    """

    def __init__(self, sparse: Any) -> None:
        super().__init__()
        self.sparse = sparse

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_unused: Any) -> tuple[Tensor]:
        """Shapes: (P, L, H), (P, L) -> (P, L, H)."""
        own = self.sparse
        places = torch.arange(hidden_states.shape[1], device=hidden_states.device)  # (L,)
        near = (places[:, None] - places).abs() <= own.one_sided_attn_window_size  # (L, L)
        everywhere, real = attention_mask > 0, (attention_mask >= 0)[:, None]  # (P, L), (P, 1, L)
        seen = (near | everywhere[:, None]) & real  # (P, L, L)
        local = _attended(hidden_states, (own.query, own.key, own.value), own.num_heads, _bias(seen))
        over_all = _attended(
            hidden_states, (own.query_global, own.key_global, own.value_global), own.num_heads, _bias(real)
        )
        return (torch.where(everywhere[:, :, None], over_all, local),)


class DenseBigBird(nn.Module):
    """A layer's attention: blocks see their neighbours and the outer two, which see all tokens.

    The first block stands in for the random ones as well: seen once more for each, its tokens' weights are
    multiplied. The last block is an input's own, that of its last token or the last of the shortest input
    that is read sparsely. Called by the names of transformers' full attention.
    Shapes: hidden_states (P, L, H), attention_mask (P, 1, 1 or L, L) -> (P, L, H).
    """

    def __init__(self, sparse: Any, config: Any) -> None:
        super().__init__()
        self.sparse = sparse
        self.block = int(config.block_size)
        self.fewest_blocks = shortest_sparse_input(config) // self.block
        self.first_blocks = 1 + int(config.num_random_blocks)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_unused: Any
    ) -> tuple[Tensor, None]:
        """Shapes: (P, L, H), (P, 1, 1 or L, L) -> (P, L, H)."""
        own = self.sparse
        bias = self.bias(_real(attention_mask, hidden_states))  # (P, L, L)
        layers = (own.query, own.key, own.value)
        return _attended(hidden_states, layers, own.num_attention_heads, bias), None

    def bias(self, real: Tensor) -> Tensor:
        """Write down who sees whom, and how often. Shapes: (P, L) -> (P, L, L)."""
        places = torch.arange(real.shape[1], device=real.device)  # (L,)
        blocks = places // self.block  # (L,)
        ends = ((places + 1) * real).amax(dim=1, keepdim=True)  # (P, 1)
        last = ((ends + self.block - 1) // self.block).clamp(min=self.fewest_blocks) - 1  # (P, 1)
        outer = (blocks == 0) | (blocks == last)  # (P, L)
        near = (blocks[:, None] - blocks).abs() <= 1  # (L, L)
        seen = (near | outer[:, None] | outer[:, :, None]) & real[:, None]  # (P, L, L)
        repeated = (blocks == 0) & ~outer[:, :, None]  # (P, L, L)
        return torch.where(repeated & seen, math.log(self.first_blocks), _bias(seen))


def _attended(hidden: Tensor, layers: tuple[nn.Module, ...], heads: int, bias: Tensor) -> Tensor:
    """Attend under a bias, by the layers for queries, keys and values.

    Shapes: hidden (P, L, H), bias (P, 1 or L, L) -> (P, L, H).
    """
    query, key, value = (
        layer(hidden).unflatten(2, (heads, -1)).transpose(1, 2) for layer in layers
    )  # (P, A, L, H / A) each
    every = bias.to(hidden.dtype)[:, None].expand(-1, -1, hidden.shape[1], -1)  # (P, 1, L, L)
    return scaled_dot_product_attention(query, key, value, every).transpose(1, 2).flatten(2)


def _bias(seen: Tensor) -> Tensor:
    return torch.where(seen, 0.0, PADDED)


def _real(attention_mask: Tensor | None, hidden: Tensor) -> Tensor:
    """Read transformers' mask, of what is added or of truth, back. Shapes: (P, 1, 1 or L, L) -> (P, L)."""
    if attention_mask is None:
        return hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
    keys = attention_mask[:, 0, 0]  # (P, L)
    return keys if keys.dtype == torch.bool else keys == 0


def _unpadded(
    input_ids: Any, attention_mask: Any, token_type_ids: Any, position_ids: Any, inputs_embeds: Any, **_: Any
) -> tuple[Any, ...]:
    """Stand in for Longformer's padding to whole windows, of which dense attention has no need."""
    return 0, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds


def _change(restore: ExitStack, owner: Any, name: str, value: Any) -> None:
    restore.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
