"""Heads: the layers behind a backbone's pooling that are no part of transformers' model."""

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from farrank_rankers.family import Activation, HeadLayer

_ACTIVATIONS: Mapping[Activation, type[nn.Module]] = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
}

# The names of a head's weights; those of ModernBERT's own head have no number.
_NAMED = re.compile(r"head\.\d")


def build_head(layers: Sequence[HeadLayer], width: int) -> nn.Sequential:
    """Build a head on vectors of `width`, with random weights. Shapes: (P, width) -> (P, W)."""
    widths = [width, *(layer.width for layer in layers)]
    return nn.Sequential(*(_layer(layer, width) for layer, width in zip(layers, widths, strict=False)))


def head_weights(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Find a head's weights in a checkpoint; their names are the same."""
    return {name: tensor for name, tensor in published.items() if _NAMED.match(name)}


def _layer(layer: HeadLayer, width: int) -> nn.Module:
    """Build a layer, its parts named as in sentence-transformers' modules. Shapes: (P, width) -> (P, W)."""
    if layer.kind == "norm":
        return nn.Sequential(OrderedDict(norm=nn.LayerNorm(layer.width)))
    if layer.residual:
        return ResidualDense(layer, width)
    linear = nn.Linear(width, layer.width, bias=layer.bias)
    return nn.Sequential(OrderedDict(linear=linear, activation=_ACTIVATIONS[layer.activation]()))


class ResidualDense(nn.Module):
    """A dense layer that adds its input, projected if the widths differ. Shapes: (…, width) -> (…, W)."""

    def __init__(self, layer: HeadLayer, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, layer.width, bias=layer.bias)
        self.activation = _ACTIVATIONS[layer.activation]()
        self.residual: nn.Module = nn.Identity()
        if width != layer.width:
            self.residual = nn.Linear(width, layer.width, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Shapes: (…, width) -> (…, W)."""
        mixed: Tensor = self.activation(self.linear(vectors))
        added: Tensor = self.residual(vectors)
        return mixed + added
