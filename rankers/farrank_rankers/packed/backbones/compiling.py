"""What of a packed backbone may be compiled: what tokens do each by itself between two attentions.

Attention itself stays outside: its kernels are fast as they are, and see lengths that a graph should not.
"""

from collections.abc import Callable
from typing import Any

import torch

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
