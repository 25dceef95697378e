"""The part of BERT's layers that comes after attention, token by token."""

from typing import Any

from torch import Tensor


class AfterAttention:
    """A post-norm layer's projection, feed-forward part and both norms. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any) -> None:
        self._mixed = layer.attention.output
        self._intermediate = layer.intermediate
        self._output = layer.output

    def __call__(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """Shapes: what attention mixed, and what it saw, (T, H) each -> (T, H)."""
        hidden = self._mixed(mixed, hidden)  # (T, H)
        output: Tensor = self._output(self._intermediate(hidden), hidden)
        return output
