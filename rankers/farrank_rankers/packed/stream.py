"""Streams: the tokens of several inputs end to end, and the layout of their values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput, IntArray, Role


class Packing(NamedTuple):
    """Inputs end to end on the host, before they are copied to a device.

    Shapes: tokens (5, T) int32: ids, roles, token types, places within their inputs, and numbers of their
    inputs; offsets (P + 1,) int32, where each input begins and the last one ends; lengths P.
    """

    tokens: IntArray
    offsets: NDArray[np.int32]
    lengths: tuple[int, ...]


def pack(inputs: Sequence[EncoderInput]) -> Packing:
    """Concatenate inputs; padding inside them is left out, but later tokens keep their places.

    Raises: ValueError if there is no input, or one has expansion tokens, to which no token may attend.
    """
    if not inputs:
        raise ValueError("inputs is empty; a batch needs at least 1")
    kept = [np.flatnonzero(item.roles != Role.PADDING) for item in inputs]
    if any((item.roles == Role.EXPANSION).any() for item in inputs):
        raise ValueError("inputs have expansion tokens, which streams do not hide from the other tokens")
    lengths = [len(places) for places in kept]
    tokens = np.empty((5, sum(lengths)), dtype=np.int32)
    offsets = np.zeros(len(inputs) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    for row, (item, places) in enumerate(zip(inputs, kept, strict=True)):
        own = tokens[:, offsets[row] : offsets[row + 1]]  # (5, L)
        own[0], own[1], own[2] = item.input_ids[places], item.roles[places], item.token_type_ids[places]
        own[3], own[4] = places, row
    return Packing(tokens, offsets, tuple(lengths))


def uploaded(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copy numbers to a device. From pinned memory the copy to a GPU waits for nothing."""
    on_host = torch.from_numpy(values)
    return (on_host.pin_memory() if device.type == "cuda" else on_host).to(device, non_blocking=True)


# Weakly referenceable: FlexAttention caches block lists of a stream as long as its bounds exist.
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class InputBounds:
    """The beginnings and ends of a stream's inputs, on the device and on the host.

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

    `places` number an input's tokens from 0. They count padding inside an input, which has no token in the
    stream; `is_dense`: there is no such padding. `inputs` are the numbers of tokens' inputs. `host_roles` are
    a copy of the roles on the host, to count tokens without waiting for a GPU.
    Shapes: input_ids, token_type_ids, places, inputs, host_roles (T,) int32, roles (T,) int64.
    """

    input_ids: Tensor
    roles: Tensor
    token_type_ids: Tensor
    places: Tensor
    inputs: Tensor
    bounds: InputBounds
    host_roles: IntArray
    is_dense: bool

    @classmethod
    def of(cls, tokens: Tensor, offsets: Tensor, packing: Packing) -> "TokenStream":
        """Make a stream from a packing's copy on a device. Shapes: tokens (5, T), offsets (P + 1,)."""
        input_ids, roles, token_type_ids, places, inputs = tokens.unbind()  # (T,) each
        last = packing.tokens[3, packing.offsets[1:] - 1]  # (P,)
        return cls(
            input_ids=input_ids,
            roles=roles.long(),
            token_type_ids=token_type_ids,
            places=places,
            inputs=inputs,
            bounds=InputBounds(offsets, packing.lengths),
            host_roles=packing.tokens[1],
            is_dense=bool((last + 1 == packing.lengths).all()),
        )

    @property
    def starts(self) -> NDArray[np.int64]:
        """Each input's first token, on the host. Shapes: (P,)."""
        return np.cumsum((0, *self.bounds.lengths[:-1]))

    def firsts(self) -> "TokenStream":
        """Make the stream of the inputs' first tokens. Shapes: P tokens of P inputs."""
        begins, count = self.bounds.offsets[:-1], len(self.bounds.lengths)
        offsets = torch.arange(count + 1, dtype=begins.dtype, device=begins.device)
        return TokenStream(
            input_ids=self.first(self.input_ids),
            roles=self.first(self.roles),
            token_type_ids=self.first(self.token_type_ids),
            places=self.first(self.places),
            inputs=self.first(self.inputs),
            bounds=InputBounds(offsets, (1,) * count),
            host_roles=self.host_roles[self.starts],
            is_dense=True,
        )

    def first(self, values: Tensor) -> Tensor:
        """Shapes: (T, F…) -> (P, F…)."""
        return values.index_select(0, self.bounds.offsets[:-1])

    def last(self, values: Tensor) -> Tensor:
        """Shapes: (T, F…) -> (P, F…)."""
        return values.index_select(0, self.bounds.offsets[1:] - 1)

    def mean(self, values: Tensor) -> Tensor:
        """Shapes: (T, H) -> (P, H)."""
        # "Unsafe" omits checks that would wait for the device.
        return torch.segment_reduce(values, "mean", offsets=self.bounds.offsets, unsafe=True)

    def with_ends(self, values: Tensor, firsts: Tensor, lasts: Tensor) -> Tensor:
        """Shapes: (T, F), (P, F), (P, F) -> (T, F)."""
        begins, ends = self.bounds.offsets[:-1].long(), self.bounds.offsets[1:].long()
        return values.index_copy(0, ends - 1, lasts).index_copy(0, begins, firsts)

    def leading(self, values: Tensor, count: int) -> Tensor:
        """Shapes: (T, F…) -> (P, count, F…)."""
        # An additional slot for all tokens beyond `count`; it is cut off.
        slots = self.inputs * (count + 1) + self.places.clamp(max=count)  # (T,)
        taken = values.new_zeros(len(self.bounds.lengths) * (count + 1), *values.shape[1:])
        taken = taken.index_copy(0, slots.long(), values)
        return taken.reshape(-1, count + 1, *values.shape[1:])[:, :count].contiguous()

    def rows(self, features: Features) -> list[Features]:
        """Split features by input; those of tokens are views of the stream's."""
        if features.roles is None or features.roles.dim() > 1:
            return features.rows()
        lengths = list(self.bounds.lengths)
        parts = (torch.split(each, lengths) for each in (features.vectors, features.roles))
        return [Features(*each) for each in zip(*parts, strict=True)]
