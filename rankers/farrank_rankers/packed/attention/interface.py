"""What a packed backbone asks of a kernel."""

from typing import Protocol

from torch import Tensor

from farrank_rankers.packed.attention.pattern import Pattern
from farrank_rankers.packed.stream import Segments


class Attention(Protocol):
    """Attention within the inputs of a stream, or of those who ask in one stream for those in another.

    Scores are scaled by 1/√D, or by `scale`. Heads of keys and values may be fewer than of queries, each
    shared by as many queries' heads in turn.
    Shapes: query (T, A, D), key and value (U, B, D), B dividing A -> (T, A, D).
    """

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
        """Attend; `asking` divides the queries, `seen` keys and values, into as many inputs."""
        ...
