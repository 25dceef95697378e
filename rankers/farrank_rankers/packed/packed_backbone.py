"""What a packed backbone is, and the parts that its layers are made of."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from farrank_rankers.packed.pattern import Attention
from farrank_rankers.packed.stream import TokenStream

# A function of tensors (T, …) that treats each token by itself; what makes of one another that does the same.
PositionWise = Callable[..., Any]
Compile = Callable[[PositionWise], PositionWise]


def as_written(function: PositionWise) -> PositionWise:
    """Leave a function to be run line by line."""
    return function


def compiled(function: PositionWise) -> PositionWise:
    """Have torch compile a function at its first call, for any number of tokens, once for all layers."""
    whole: PositionWise = torch.compile(function, dynamic=True, fullgraph=True)
    return whole


class FusedLinear:
    """Linear layers side by side; from now on theirs are views of its weights, so that nothing is kept twice.

    Layers that have a bias and such that have none may stand together. What moves or converts the layers
    afterwards parts them from it: whatever does so, comes first.
    Shapes: (T, H) -> (T, the layers' outputs together).
    """

    # Outside, for what is made in inference mode can never be trained again.
    @torch.inference_mode(mode=False)
    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.weight = torch.cat([layer.weight.detach() for layer in layers])  # (O, H)
        self.bias: Tensor | None = None
        if any(layer.bias is not None for layer in layers):
            zeros = self.weight.new_zeros
            biases = [zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers]
            self.bias = torch.cat([bias.detach() for bias in biases])  # (O,)
        start = 0
        for layer in layers:
            rows = slice(start, start + layer.out_features)
            layer.weight.data = self.weight[rows]
            if layer.bias is not None and self.bias is not None:
                layer.bias.data = self.bias[rows]
            start = rows.stop

    def __call__(self, hidden: Tensor) -> Tensor:
        """Shapes: (T, H) -> (T, O)."""
        return nn.functional.linear(hidden, self.weight, self.bias)


def are_plain(layers: Iterable[Any]) -> bool:
    """Whether layers are linear and nothing more: neither quantised, nor parametrised, nor adapted."""
    return all(type(layer) is nn.Linear and type(layer.weight) is nn.Parameter for layer in layers)


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
