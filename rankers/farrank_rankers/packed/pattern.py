"""Which tokens of an input see each other, and how much: one description for every kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from farrank_rankers.packed.stream import Segments

# Called with batch (always 0), head, and the places in the stream of the token that asks and of the one that
# is seen, tensors of any shapes that fit together: a fused kernel asks for single pairs, a plain one for all.
# Fused kernels ask about tokens of different inputs, too, and do not heed the answer.
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# Called with a pair's score before them.
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What attention within an input does beyond softmax(q·k / √D): by itself every token sees all.

    `causal`: a token sees none behind it. `slopes`, (A,) fp32: a head's scores fall by its slope with every
    token between two (ALiBi). `sees` and `rescored` say the rest; only general kernels take them. `near`
    promises that `sees` is false for tokens more than so many places apart, unless one of the two is among
    the first `far_seen` or the last `far_seen_last` of its input.
    """

    causal: bool = False
    slopes: Tensor | None = None
    sees: Mask | None = None
    rescored: Score | None = None
    near: int | None = None
    far_seen: int = 0
    far_seen_last: int = 0

    @property
    def is_general(self) -> bool:
        """Whether only a general kernel serves it."""
        return self.sees is not None or self.rescored is not None

    @property
    def is_placed(self) -> bool:
        """Whether it matters at which places of their inputs tokens stand."""
        return self.causal or self.slopes is not None


EVERY_TOKEN = Pattern()
CAUSAL = Pattern(causal=True)


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
