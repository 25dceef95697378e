"""Which tokens of a stream Longformer lets see and be seen by all of their input's."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farrank_rankers.packed.stream import Segments, TokenStream
from farrank_rankers.tokens import Role

Array = TypeVar("Array", Tensor, NDArray[Any])


@dataclass(frozen=True, slots=True, eq=False)
class GlobalTokens:
    """A stream's global tokens; all of them are among the first `leading` or last `trailing` of their inputs.

    `segments` divide them into inputs.
    Shapes: flags (T,) bool, indices (G,) int64, ascending.
    """

    flags: Tensor
    indices: Tensor
    segments: Segments
    leading: int
    trailing: int


def first_tokens(stream: TokenStream) -> GlobalTokens:
    """Make each input's first token global."""
    offsets, inputs = stream.segments.offsets, len(stream.segments.lengths)
    indices = offsets[:-1].long()  # (P,)
    flags = torch.zeros_like(stream.inputs, dtype=torch.bool).index_fill(0, indices, True)  # (T,)
    each = torch.arange(inputs + 1, dtype=offsets.dtype, device=offsets.device)  # (P + 1,)
    return GlobalTokens(flags, indices, Segments(each, (1,) * inputs), leading=1, trailing=0)


def frames_and_queries(stream: TokenStream) -> GlobalTokens:
    """Make each input's first two special tokens global, and its query, as for padded batches.

    How many there are is counted on the host, so that nobody waits for the device.
    """
    lengths = np.asarray(stream.segments.lengths)  # (P,)
    starts = np.cumsum(lengths) - lengths  # (P,)
    firsts = np.repeat(starts, lengths)  # (T,), each token's input's first
    on_host = are_global(stream.host_roles, firsts)  # (T,)
    counts = tuple(np.add.reduceat(on_host, starts, dtype=np.int64).tolist())
    leading, trailing = _reach(on_host, lengths, starts, np.arange(len(firsts)) - firsts)
    offsets = stream.segments.offsets
    flags = are_global(stream.roles, offsets.index_select(0, stream.inputs).long())  # (T,)
    passed = torch.nn.functional.pad(flags.cumsum(0), (1, 0))  # (T + 1,), before each token
    segments = Segments(passed.index_select(0, offsets).to(offsets.dtype), counts)
    return GlobalTokens(flags, _indices(flags, passed, sum(counts)), segments, leading, trailing)


def are_global(roles: Array, firsts: Array) -> Array:
    """Mark each input's first two special tokens, and its query, on the host or on the device.

    Shapes: roles, firsts, where each token's input begins, (T,) -> (T,) bool.
    """
    special = roles == Role.SPECIAL  # (T,)
    counted = special.cumsum(0)  # (T,)
    among_two = counted - counted[firsts] + special[firsts] <= 2  # (T,)
    flags: Array = (special & among_two) | (roles == Role.QUERY)
    return flags


def _indices(flags: Tensor, passed: Tensor, count: int) -> Tensor:
    """List the places of `count` flags without asking how many there are. Shapes: (T,), (T + 1,) -> (G,)."""
    # All others go to a slot more, which is cut off.
    slots = torch.where(flags, passed[:-1], count)  # (T,)
    places = torch.arange(len(flags), device=flags.device)  # (T,)
    return places.new_zeros(count + 1).scatter(0, slots, places)[:count]


def _reach(
    flags: NDArray[np.bool_], lengths: NDArray[Any], starts: NDArray[Any], places: NDArray[Any]
) -> tuple[int, int]:
    """Find within how many first and last tokens of their inputs all flags are: runs in front and the rest.

    Shapes: flags (T,), lengths and starts (P,), places within inputs (T,).
    """
    ends = np.repeat(lengths, lengths)  # (T,)
    runs = np.minimum.reduceat(np.where(flags, ends, places), starts)  # (P,)
    is_rest = flags & (places >= np.repeat(runs, lengths))  # (T,)
    rests = np.minimum.reduceat(np.where(is_rest, places, ends), starts)  # (P,)
    return int(runs.max()), int((lengths - rests).max())
