"""Which tokens of an input see each other, and how much: one description for every kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

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


def widened(multiple: int, *heads: Tensor) -> tuple[Tensor, ...]:
    """Put zeros behind every head, which change no score; most are wide enough and stay as they are.

    Shapes: (T, A, D) each -> (T, A, D rounded up).
    """
    missing = -heads[0].shape[-1] % multiple
    return tuple(pad(each, (0, missing)) for each in heads) if missing else heads


def repeated(count: int, *heads: Tensor) -> tuple[Tensor, ...]:
    """Repeat heads that several queries share. Shapes: (U, B, D) each -> (U, B · count, D)."""
    return tuple(each.repeat_interleave(count, dim=1) for each in heads) if count > 1 else heads
