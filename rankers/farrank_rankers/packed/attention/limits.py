"""What flash kernels cannot take, said before they are called."""

import torch
from torch import Tensor

from farrank_rankers.packed.attention.pattern import Pattern
from farrank_rankers.packed.stream import Segments

HALF = (torch.float16, torch.bfloat16)


def check_half_precision(query: Tensor, kernel: str) -> None:
    """Refuse what is not in half precision. Raises: ValueError."""
    if query.dtype not in HALF:
        raise ValueError(f"query is in {query.dtype}; {kernel} takes float16 and bfloat16 alone")


def check_pattern(pattern: Pattern, asking: Segments, seen: Segments, kernel: str) -> None:
    """Refuse masks and scores of one's own, and places that flash kernels count from the other end.

    Raises: ValueError.
    """
    if pattern.is_general:
        raise ValueError(f"pattern has a mask or scores of its own; {kernel} takes neither")
    # Flash kernels let the last token that asks stand beside the last one that is seen, Pattern the first.
    if is_placed(pattern) and asking.lengths != seen.lengths:
        raise ValueError(f"asking and seen differ in length; {kernel} counts places from their ends")


def is_placed(pattern: Pattern) -> bool:
    """Whether it matters at which places of an input tokens stand."""
    return pattern.causal or pattern.slopes is not None
