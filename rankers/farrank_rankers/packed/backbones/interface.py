"""What a packed backbone is."""

from typing import NamedTuple, Protocol

from torch import Tensor

from farrank_rankers.packed.attention.interface import Attention
from farrank_rankers.packed.stream import TokenStream


class PackedOutput(NamedTuple):
    """What `Encoder.read` reads of transformers' outputs.

    Shapes: last_hidden_state (T, H), hidden_states, if asked for, likewise, of embeddings and layers; logits
    (P, labels) of classifiers alone.
    """

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None = None
    logits: Tensor | None = None


class PackedBackbone(Protocol):
    """A backbone that reads a stream, on the weights of the one that reads padded batches."""

    def __call__(
        self, stream: TokenStream, positions: Tensor, attention: Attention, *, hidden_states: bool = False
    ) -> PackedOutput:
        """Encode. Shapes: positions (T,), as the backbone numbers them -> last_hidden_state (T, H)."""
        ...
