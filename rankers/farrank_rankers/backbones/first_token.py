"""The last layer of BERT's kin, computed for each input's first token alone.

Where nothing reads the other tokens' vectors, their queries, their way through the last feed-forward and all
between are computed in vain: 10 of the layer's 12 squares of the width, a seventh of the work of six layers.
What remains is the same arithmetic on the same numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

KIN = frozenset({"bert", "camembert", "electra", "roberta", "xlm-roberta"})


@contextmanager
def last_layer_for_first_tokens(backbone: nn.Module) -> Iterator[None]:
    """Let a backbone's last layer give out the first tokens alone, (P, 1, H), for a while.

    Backbones that are not of BERT's kin stay as they are. For inference: nothing is dropped out.
    """
    model: Any = getattr(backbone, "base_model", backbone)
    if not _is_kin(model):
        yield
        return
    last = model.encoder.layer[-1]
    whole = last.attention
    last.attention = FirstTokenAttention(whole)
    try:
        yield
    finally:
        last.attention = whole


class FirstTokenAttention(nn.Module):
    """A layer's attention, asked by the first token of each input; called by the names of transformers' own.

    Shapes: hidden_states (P, L, H), attention_mask (P, 1, 1 or L, L) -> (P, 1, H).
    """

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_unused: Any
    ) -> tuple[Tensor, None]:
        """Shapes: (P, L, H), (P, 1, 1 or L, L) -> (P, 1, H)."""
        own = self.whole.self
        first = hidden_states[:, :1]  # (P, 1, H)
        query, key, value = (
            layer(states).unflatten(2, (own.num_attention_heads, -1)).transpose(1, 2)
            for layer, states in ((own.query, first), (own.key, hidden_states), (own.value, hidden_states))
        )  # (P, A, 1, D), (P, A, L, D) twice
        seen = None if attention_mask is None else attention_mask[:, :, :1]  # (P, 1, 1, L)
        mixed = scaled_dot_product_attention(query, key, value, seen)  # (P, A, 1, D)
        return self.whole.output(mixed.transpose(1, 2).flatten(2), first), None


def _is_kin(model: Any) -> bool:
    """Whether a model has BERT's layers, and in them nothing but BERT's attention."""
    config = model.config
    if getattr(config, "model_type", None) not in KIN:
        return False
    positions = getattr(config, "position_embedding_type", "absolute")
    return positions in ("absolute", None) and not getattr(config, "is_decoder", False)
