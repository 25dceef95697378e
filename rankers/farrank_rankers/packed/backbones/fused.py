"""Several linear layers over the same input as one matrix product."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


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
