"""Attention patterns: which tokens of an input see each other, and how strongly, for every kernel."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from farrank_rankers.packed.stream import InputBounds

# Called with batch (always 0), head, and the places in the stream of the query's token and of the key's,
# tensors of any broadcastable shapes: a fused kernel evaluates single pairs, a plain one all at once.
# Fused kernels evaluate pairs of different inputs, too, and ignore the result.
Mask = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# The same with a pair's score as the first argument.
Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The changes to attention with softmax(q·k / √D) within an input; by default every token sees all.

    `causal`: a token sees no later tokens. `window`: it sees tokens at most this far away. `slopes`, (A,)
    fp32: a head's scores fall by its slope with each token of distance (ALiBi). `sees` and `rescored`
    describe other changes; only general kernels support them. `near` promises that `sees` is false for tokens
    further apart than this number of places, unless one of the two is among the first `far_seen` or the last
    `far_seen_last` of its input.
    """

    causal: bool = False
    window: int | None = None
    slopes: Tensor | None = None
    sees: Mask | None = None
    rescored: Score | None = None
    near: int | None = None
    far_seen: int = 0
    far_seen_last: int = 0

    @property
    def is_general(self) -> bool:
        """Whether only a general kernel supports the pattern."""
        return self.sees is not None or self.rescored is not None

    @property
    def is_placed(self) -> bool:
        """Whether the pattern depends on tokens' places in their inputs."""
        return self.causal or self.window is not None or self.slopes is not None


def counting_places(pattern: Pattern, places: Tensor) -> Pattern:
    """Count a window in places of the input, which include padding that the stream leaves out.

    A pattern without a window does not change.

    Shapes: places (T,).
    """
    if pattern.window is None:
        return pattern
    reach = places.new_full((), pattern.window)  # a mask compiled for every window contains no number

    def sees(batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
        return (places[own] - places[other]).abs() <= reach

    return replace(pattern, window=None, sees=sees, near=pattern.window)


EVERY_TOKEN = Pattern()
CAUSAL = Pattern(causal=True)


class Heads(NamedTuple):
    """Queries of a stream's inputs; keys and values of the same inputs or of as many in another stream.

    `asking` divides the queries into inputs, `seen` the keys and values. Keys and values may have fewer heads
    than queries; consecutive heads of queries then share one. Scores are scaled by 1/√D, or by `scale`.
    Shapes: query (T, A, D), key and value (U, B, D), B dividing A.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    asking: InputBounds
    seen: InputBounds
    scale: float | None = None

    def padded(self, multiple: int) -> "Heads":
        """Pad every head with zeros to a multiple of this number of values; they change no score.

        The scale is made explicit, because it would follow the new width.
        """
        width = self.query.shape[-1]
        missing = -width % multiple
        query, key, value = (pad(each, (0, missing)) if missing else each for each in self[:3])
        scale = width**-0.5 if self.scale is None else self.scale
        return Heads(query, key, value, self.asking, self.seen, scale)


# Attention of each input's queries to its own keys. Shapes: heads of (T, A, D) and (U, B, D) -> (T, A, D).
Attention = Callable[[Heads, Pattern], Tensor]
