"""Longformer: who attends to every token, and is attended to by every token.

Which tokens of a stream Longformer lets see and be seen by all of their input's.

Longformer: tokens see their neighbours and a few global tokens, which see all, by layers of their own.

Source: Beltagy et al., arXiv 2004.05150.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farrank_rankers.backbones.bert import AfterAttention
from farrank_rankers.packed.packed_backbone import Compile, FusedLinear, PackedOutput, are_plain
from farrank_rankers.packed.pattern import EVERY_TOKEN, Attention, Pattern
from farrank_rankers.packed.stream import Segments, TokenStream
from farrank_rankers.tokens import Role


def with_global_attention(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call Longformer with global attention on [CLS], the query and the first [SEP].

    A classifier is left to transformers, which gives its first token alone global attention, as in training.
    transformers pads to a multiple of the attention window and masks what it adds.
    Source: Beltagy et al., arXiv 2004.05150 (global attention on the question, for question answering).
    """
    if getattr(backbone, "base_model", backbone) is not backbone:
        return backbone(**inputs)
    mask = global_positions(roles).to(inputs["attention_mask"].dtype)  # (P, L)
    return backbone(**inputs, global_attention_mask=mask)


def global_positions(roles: Tensor) -> Tensor:
    """Mark the first two special tokens of each input, and its query.

    Shapes: (P, L) -> (P, L) bool.
    """
    special = roles == Role.SPECIAL  # (P, L)
    return (special & (special.cumsum(dim=1) <= 2)) | (roles == Role.QUERY)


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


class PackedLongformer:
    """A transformers Longformer read as it is: [CLS], the query and the first [SEP] are global.

    Shapes: T tokens -> last_hidden_state (T, H).
    """

    def __init__(self, model: Any, compile_by: Compile) -> None:
        self._embeddings = model.embeddings
        self._layers = [PackedLongformerLayer(layer, compile_by) for layer in model.encoder.layer]
        device = model.embeddings.word_embeddings.weight.device
        # Tensors, each (): a mod that is compiled for streams of any length must capture no number.
        self._windows = {layer.window: torch.tensor(layer.window, device=device) for layer in self._layers}

    @staticmethod
    def serves(model: Any) -> bool:
        """Whether all projections can be fused."""
        return all(are_plain(_projections(layer.attention.self)) for layer in model.encoder.layer)

    def global_tokens(self, stream: TokenStream) -> GlobalTokens:
        """Say which tokens are global."""
        return frames_and_queries(stream)

    def __call__(
        self, stream: TokenStream, positions: Tensor, attention: Attention, *, hidden_states: bool = False
    ) -> PackedOutput:
        """Shapes: positions (T,) -> last_hidden_state (T, H)."""
        hidden: Tensor = self._embeddings(
            input_ids=stream.input_ids[None],
            token_type_ids=stream.token_type_ids[None],
            position_ids=positions[None],
        )[0]  # (T, H)
        everywhere = self.global_tokens(stream)
        patterns = {
            window: near_or_global(stream.places, window, reach, everywhere)
            for window, reach in self._windows.items()
        }
        states = [hidden]
        for layer in self._layers:
            hidden = layer(hidden, stream.segments, patterns[layer.window], everywhere, attention)  # (T, H)
            if hidden_states:
                states.append(hidden)
        return PackedOutput(hidden, tuple(states) if hidden_states else None)


class PackedLongformerInClassifier(PackedLongformer):
    """A Longformer below a classifier: its first token alone is global, as in training."""

    def global_tokens(self, stream: TokenStream) -> GlobalTokens:
        """Say which tokens are global."""
        return first_tokens(stream)


class PackedLongformerLayer:
    """A post-norm layer; `window` is how far a token sees to either side. Shapes: (T, H) -> (T, H)."""

    def __init__(self, layer: Any, compile_by: Compile) -> None:
        own = layer.attention.self
        self.window = int(own.one_sided_attn_window_size)
        self._heads = int(own.num_heads)
        self._projected = FusedLinear(_projections(own))
        self._global_query = own.query_global
        self._transformed = compile_by(AfterAttention(layer).__call__)

    def __call__(
        self,
        hidden: Tensor,
        segments: Segments,
        pattern: Pattern,
        everywhere: GlobalTokens,
        attention: Attention,
    ) -> Tensor:
        """Shapes: (T, H) -> (T, H)."""
        projected = self._projected(hidden).view(len(hidden), 5, self._heads, -1)  # (T, 5, A, D)
        query, key, value, global_key, global_value = projected.unbind(1)  # (T, A, D) each
        mixed = attention(query, key, value, segments, segments, pattern).flatten(1)  # (T, H)
        asking = hidden.index_select(0, everywhere.indices)  # (G, H)
        over_all = attention(
            self._global_query(asking).unflatten(1, (self._heads, -1)),  # (G, A, D)
            global_key,
            global_value,
            everywhere.segments,
            segments,
            EVERY_TOKEN,
        )  # (G, A, D)
        mixed = mixed.index_copy(0, everywhere.indices, over_all.flatten(1))  # (T, H)
        output: Tensor = self._transformed(mixed, hidden)
        return output


def near_or_global(places: Tensor, window: int, reach: Tensor, everywhere: GlobalTokens) -> Pattern:
    """Let tokens see those at most `window` places away, and the global ones.

    Shapes: places (T,), reach (), the window once more.
    """
    is_global = everywhere.flags  # (T,)

    def sees(batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
        return ((places[own] - places[other]).abs() <= reach) | is_global[other]

    return Pattern(sees=sees, near=window, far_seen=everywhere.leading, far_seen_last=everywhere.trailing)


def _projections(own: Any) -> list[Any]:
    return [own.query, own.key, own.value, own.key_global, own.value_global]
