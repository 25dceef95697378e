"""A stream: the tokens of several inputs end to end, and what families take out of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput, IntArray, Role


class Packing(NamedTuple):
    """What becomes a stream on the device.

    Shapes: tokens (5, T) int32, their ids, roles, segments, places within their inputs, and inputs; offsets
    (P + 1,) int32, where each input begins and the last one ends; lengths P.
    """

    tokens: IntArray
    offsets: NDArray[np.int32]
    lengths: tuple[int, ...]


def pack(inputs: Sequence[EncoderInput]) -> Packing:
    """Put inputs end to end; padding inside them is left out, the tokens behind it keep their places.

    Raises: ValueError if there is no input.
    """
    if not inputs:
        raise ValueError("inputs is empty; a batch needs at least 1")
    kept = [np.flatnonzero(item.roles != Role.PADDING) for item in inputs]
    lengths = [len(places) for places in kept]
    tokens = np.empty((5, sum(lengths)), dtype=np.int32)
    offsets = np.zeros(len(inputs) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    for row, (item, places) in enumerate(zip(inputs, kept, strict=True)):
        own = tokens[:, offsets[row] : offsets[row + 1]]  # (5, L)
        own[0], own[1], own[2] = item.input_ids[places], item.roles[places], item.token_type_ids[places]
        own[3], own[4] = places, row
    return Packing(tokens, offsets, tuple(lengths))


# Kernels keep what they made for the inputs of a stream as long as these.
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Segments:
    """Where the inputs of a stream begin and end, on the device and on the host.

    Shapes: offsets (P + 1,) int32, from 0 to T; lengths P, none of them 0.
    """

    offsets: Tensor
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Count the longest input's tokens."""
        return max(self.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class TokenStream:
    """Tokens of P inputs; a layout (`farrank_rankers.features`) of values (T, F…).

    `places` count from 0 in every input, padding inside it included, which itself is not here; `is_dense`
    says that no input has any, so that tokens stand as far apart as in the stream. `inputs` say which input a
    token belongs to.
    `host_roles` are the roles on the host, where some must be counted.
    Shapes: input_ids, token_type_ids, places, inputs, host_roles (T,) int32, roles (T,) int64.
    """

    input_ids: Tensor
    roles: Tensor
    token_type_ids: Tensor
    places: Tensor
    inputs: Tensor
    segments: Segments
    host_roles: IntArray
    is_dense: bool

    @classmethod
    def of(cls, tokens: Tensor, offsets: Tensor, packing: Packing) -> "TokenStream":
        """Read a packing and what was copied of it to the device. Shapes: tokens (5, T), offsets (P + 1,)."""
        input_ids, roles, token_type_ids, places, inputs = tokens.unbind()  # (T,) each
        last = packing.tokens[3, packing.offsets[1:] - 1]  # (P,)
        return cls(
            input_ids=input_ids,
            roles=roles.long(),
            token_type_ids=token_type_ids,
            places=places,
            inputs=inputs,
            segments=Segments(offsets, packing.lengths),
            host_roles=packing.tokens[1],
            is_dense=bool((last + 1 == packing.lengths).all()),
        )

    def firsts(self) -> "TokenStream":
        """Give the stream of each input's first token. Shapes: P tokens of P inputs."""
        begins, count = self.segments.offsets[:-1], len(self.segments.lengths)
        offsets = torch.arange(count + 1, dtype=begins.dtype, device=begins.device)
        input_ids, roles, token_type_ids, places, inputs = (
            self.first(each)
            for each in (self.input_ids, self.roles, self.token_type_ids, self.places, self.inputs)
        )
        starts = np.cumsum((0, *self.segments.lengths[:-1]))
        return TokenStream(
            input_ids=input_ids,
            roles=roles,
            token_type_ids=token_type_ids,
            places=places,
            inputs=inputs,
            segments=Segments(offsets, (1,) * count),
            host_roles=self.host_roles[starts],
            is_dense=True,
        )

    def first(self, values: Tensor) -> Tensor:
        """Shapes: (T, F…) -> (P, F…)."""
        return values.index_select(0, self.segments.offsets[:-1])

    def mean(self, values: Tensor) -> Tensor:
        """Shapes: (T, H) -> (P, H)."""
        # Unsafe: what it would check, it would have to wait for.
        return torch.segment_reduce(values, "mean", offsets=self.segments.offsets, unsafe=True)

    def leading(self, values: Tensor, count: int) -> Tensor:
        """Shapes: (T, F…) -> (P, count, F…)."""
        # A place more, for all tokens that stand further behind; it is cut off.
        slots = self.inputs * (count + 1) + self.places.clamp(max=count)  # (T,)
        taken = values.new_zeros(len(self.segments.lengths) * (count + 1), *values.shape[1:])
        taken = taken.index_copy(0, slots.long(), values)
        return taken.reshape(-1, count + 1, *values.shape[1:])[:, :count].contiguous()

    def rows(self, features: Features) -> list[Features]:
        """Take features apart, one for each input; those of tokens are views of the stream's."""
        if features.roles is None or features.roles.dim() > 1:
            return features.rows()
        of_inputs = zip(
            torch.split(features.vectors, list(self.segments.lengths)),
            torch.split(features.roles, list(self.segments.lengths)),
            strict=True,
        )
        return [Features(vectors, roles) for vectors, roles in of_inputs]
