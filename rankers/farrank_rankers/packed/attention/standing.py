"""Where the tokens that ask stand among those that are seen."""

from typing import NamedTuple

from torch import Tensor

from farrank_rankers.packed.stream import Segments


class Standing(NamedTuple):
    """A token's place in the stream of those seen, its input's first token there, the one behind the last.

    Shapes: (T,) int32 each.
    """

    first: Tensor
    behind: Tensor
    place: Tensor

    @classmethod
    def of(cls, asking: Segments, seen: Segments) -> "Standing":
        """Look up on the device, without waiting for it."""
        lengths, tokens = asking.offsets.diff(), sum(asking.lengths)

        def of_tokens(of_inputs: Tensor) -> Tensor:
            """Shapes: (P,) -> (T,)."""
            return of_inputs.repeat_interleave(lengths, output_size=tokens)

        first = of_tokens(seen.offsets[:-1])
        own_first = of_tokens(asking.offsets[:-1])
        within = lengths.new_ones(tokens).cumsum(0, dtype=lengths.dtype) - 1 - own_first
        return cls(first, of_tokens(seen.offsets[1:]), first + within)
