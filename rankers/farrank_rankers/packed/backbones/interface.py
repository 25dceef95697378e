"""What a packed backbone is."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from farrank_rankers.packed.attention.interface import Attention
from farrank_rankers.packed.backbones.compiling import Compile
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
    """A backbone that reads a stream, on the weights of the one that reads padded batches.

    It is for inference: whatever mode its modules are in, no attention weight is dropped.
    """

    def __call__(
        self, stream: TokenStream, positions: Tensor, attention: Attention, *, hidden_states: bool = False
    ) -> PackedOutput:
        """Encode. Shapes: positions (T,), as the backbone numbers them -> last_hidden_state (T, H)."""
        ...


class PackedForm(Protocol):
    """How an architecture is packed: a class of packed backbones."""

    def __call__(self, model: Any, compile_by: Compile) -> PackedBackbone:
        """Put a packed backbone on a model's weights, which must be where they are to stay.

        `compile_by` is given what the layers do position by position.
        """
        ...

    def serves(self, model: Any) -> bool:
        """Whether a model of the architecture computes what the packed form does: a variant may not."""
        ...
