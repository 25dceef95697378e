"""Several linear layers over the same input as one matrix product."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FusedLinear:
    """Linear layers side by side; from now on theirs are views of its weights, so that nothing is kept twice.

    Layers that have a bias and such that have none may stand together.
    Shapes: (T, H) -> (T, the layers' outputs together).
    """

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
