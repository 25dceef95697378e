"""torch's own variable-length attention: every token, and causally."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from farrank_rankers.packed.pattern import Pattern, check_half_precision, check_pattern, repeated, widened
from farrank_rankers.packed.stream import Segments

NAME = "torch's variable-length attention"
EVERYWHERE, NOT_BEHIND = (-1, -1), (-1, 0)
# The kernel reads 16 bytes of a head at once.
WIDTH = 8

# Releases differ: up to 2.10 without window_size and scale (pytorch/pytorch#172245), up to 2.11 without
# enable_gqa.
_PARAMETERS = frozenset(signature(varlen_attn).parameters)
IS_SERVED = {"window_size", "scale"} <= _PARAMETERS
SHARES_HEADS = "enable_gqa" in _PARAMETERS


class VarlenAttention:
    """Attend as `interface.Attention` says, in half precision, without masks, slopes or scores of one's own.

    Raises: ValueError for a dtype or a pattern it cannot take.
    """

    def __init__(self, kernel: Callable[..., Any] = varlen_attn, shares_heads: bool = SHARES_HEADS) -> None:
        self._kernel = kernel
        self._shares_heads = shares_heads

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        asking: Segments,
        seen: Segments,
        pattern: Pattern,
        scale: float | None = None,
    ) -> Tensor:
        """Shapes: query (T, A, D), key and value (U, B, D) -> (T, A, D)."""
        check_half_precision(query, NAME)
        check_pattern(pattern, asking, seen, NAME)
        if pattern.slopes is not None:
            raise ValueError(f"pattern has slopes; {NAME} takes none")
        width, shared = query.shape[-1], query.shape[1] // key.shape[1]
        options: dict[str, Any] = {}
        if self._shares_heads:
            options["enable_gqa"] = shared > 1
        else:
            key, value = repeated(shared, key, value)  # (U, A, D) each
        query, key, value = widened(WIDTH, query, key, value)
        mixed: Tensor = self._kernel(
            query,
            key,
            value,
            asking.offsets,
            seen.offsets,
            asking.longest,
            seen.longest,
            scale=width**-0.5 if scale is None else scale,
            window_size=NOT_BEHIND if pattern.causal else EVERYWHERE,
            **options,
        )  # (T, A, D or more)
        return mixed[..., :width]
