"""Longformer: tokens see their neighbours and a few global tokens, which see all, by layers of their own.

`is_global` and `sees` are the law; the dense form for traced graphs and the packed form both apply them.
transformers' own sparse attention serves padded batches.

Source: Beltagy et al., arXiv 2004.05150 (global attention on the question, for question answering).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farrank_rankers.backbones.bert import AfterAttention, attend_seen, first_alone
from farrank_rankers.backbones.forms import Forms, Replacement
from farrank_rankers.packed.packed_backbone import (
    Compile,
    FusedLinear,
    PackedOutput,
    Reading,
    are_plain,
    embedded,
    run_layers,
)
from farrank_rankers.packed.pattern import EVERY_TOKEN, Attention, Heads, Pattern
from farrank_rankers.packed.stream import InputBounds, TokenStream
from farrank_rankers.tokens import Role

Array = TypeVar("Array", Tensor, NDArray[Any])


def is_global(roles: Array, special_tokens: Array) -> Array:
    """Mark the first two special tokens of each input, and its query.

    `special_tokens` counts an input's special tokens up to each token, itself included.
    Shapes: (…) each -> (…) bool.
    """
    marked: Array = ((roles == Role.SPECIAL) & (special_tokens <= 2)) | (roles == Role.QUERY)
    return marked


def sees(own: Tensor, other: Tensor, reach: Tensor | int, other_is_global: Tensor) -> Tensor:
    """Whether a token sees another: at most `reach` places away, or global. A global token sees all.

    Shapes: places own and other, other_is_global, any that fit together -> bool.
    """
    return ((own - other).abs() <= reach) | other_is_global


def global_positions(roles: Tensor) -> Tensor:
    """Mark the global tokens of a padded batch. Shapes: (P, L) -> (P, L) bool."""
    return is_global(roles, (roles == Role.SPECIAL).cumsum(dim=1))


def with_global_attention(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call Longformer with global attention on [CLS], the query and the first [SEP].

    A classifier is left to transformers, which gives its first token alone global attention, as in training.
    transformers pads to a multiple of the attention window and masks what it adds.
    """
    if getattr(backbone, "base_model", backbone) is not backbone:
        return backbone(**inputs)
    mask = global_positions(roles).to(inputs["attention_mask"].dtype)  # (P, L)
    return backbone(**inputs, global_attention_mask=mask)


class DenseLongformer(nn.Module):
    """A layer's attention over all pairs under a mask; called as transformers calls its own.

    attention_mask is positive for global tokens, negative for padding.
    Shapes: hidden_states (P, L, H), attention_mask (P, L) -> (P, L, H).
    """

    def __init__(self, sparse: Any) -> None:
        super().__init__()
        self.sparse = sparse

    def forward(self, hidden_states: Tensor, attention_mask: Tensor, **_unused: Any) -> tuple[Tensor]:
        """Shapes: (P, L, H), (P, L) -> (P, L, H)."""
        own = self.sparse
        places = torch.arange(hidden_states.shape[1], device=hidden_states.device)  # (L,)
        everywhere, real = attention_mask > 0, (attention_mask >= 0)[:, None]  # (P, L), (P, 1, L)
        near = sees(places[:, None], places, own.one_sided_attn_window_size, everywhere[:, None])  # (P, L, L)
        layers = (own.query, own.key, own.value)
        local = attend_seen(hidden_states, layers, own.num_heads, near & real)
        layers = (own.query_global, own.key_global, own.value_global)
        over_all = attend_seen(hidden_states, layers, own.num_heads, real)
        return (torch.where(everywhere[:, :, None], over_all, local),)


def dense_layers(model: Any) -> Iterator[Replacement]:
    """Replace the attention of all layers, and the padding to whole windows, which it does not need."""
    for layer in model.encoder.layer:
        yield Replacement(layer.attention, "self", DenseLongformer(layer.attention.self))
    yield Replacement(model, "_pad_to_window_size", _unpadded)


def _unpadded(
    input_ids: Any, attention_mask: Any, token_type_ids: Any, position_ids: Any, inputs_embeds: Any, **_: Any
) -> tuple[Any, ...]:
    return 0, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds


@dataclass(frozen=True, slots=True, eq=False)
class GlobalTokens:
    """A stream's global tokens; all of them are among the first `leading` or last `trailing` of their inputs.

    `bounds` divide them into inputs.
    Shapes: flags (T,) bool, indices (G,) int64, ascending.
    """

    flags: Tensor
    indices: Tensor
    bounds: InputBounds
    leading: int
    trailing: int


def first_tokens(stream: TokenStream) -> GlobalTokens:
    """Make each input's first token global."""
    firsts = stream.firsts()
    indices = stream.bounds.offsets[:-1].long()  # (P,)
    flags = torch.zeros_like(stream.inputs, dtype=torch.bool).index_fill(0, indices, True)  # (T,)
    return GlobalTokens(flags, indices, firsts.bounds, leading=1, trailing=0)


def frames_and_queries(stream: TokenStream) -> GlobalTokens:
    """Make each input's first two special tokens global, and its query, as for padded batches.

    How many there are is counted on the host, so that nothing waits for the device.
    """
    lengths = np.asarray(stream.bounds.lengths)  # (P,)
    starts = np.cumsum(lengths) - lengths  # (P,)
    firsts = np.repeat(starts, lengths)  # (T,), each token's input's first
    on_host = is_global(stream.host_roles, _counted(stream.host_roles, firsts))  # (T,)
    counts = tuple(np.add.reduceat(on_host, starts, dtype=np.int64).tolist())
    leading, trailing = _ends(on_host, lengths, starts, np.arange(len(firsts)) - firsts)
    offsets = stream.bounds.offsets
    special = _counted(stream.roles, offsets.index_select(0, stream.inputs).long())  # (T,)
    flags = is_global(stream.roles, special)  # (T,)
    passed = torch.nn.functional.pad(flags.cumsum(0), (1, 0))  # (T + 1,), before each token
    bounds = InputBounds(passed.index_select(0, offsets).to(offsets.dtype), counts)
    return GlobalTokens(flags, _indices(flags, passed, sum(counts)), bounds, leading, trailing)


def _counted(roles: Array, firsts: Array) -> Array:
    """Count each input's special tokens up to each token. Shapes: roles, firsts (T,) -> (T,)."""
    special = roles == Role.SPECIAL  # (T,)
    counts = special.cumsum(0)  # (T,), from the stream's beginning
    of_input: Array = counts - counts[firsts] + special[firsts]
    return of_input


def _indices(flags: Tensor, passed: Tensor, count: int) -> Tensor:
    """List the places of `count` flags without asking how many there are. Shapes: (T,), (T + 1,) -> (G,)."""
    # All others go to one slot more, which is cut off.
    slots = torch.where(flags, passed[:-1], count)  # (T,)
    places = torch.arange(len(flags), device=flags.device)  # (T,)
    return places.new_zeros(count + 1).scatter(0, slots, places)[:count]


def _ends(
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
        # Tensors, each (): a mask that is compiled for streams of any length must hold no number.
        self._windows = {layer.window: torch.tensor(layer.window, device=device) for layer in self._layers}

    @staticmethod
    def serves(model: Any) -> bool:
        """Whether all projections can be fused."""
        return all(are_plain(_projections(layer.attention.self)) for layer in model.encoder.layer)

    def global_tokens(self, stream: TokenStream) -> GlobalTokens:
        """Say which tokens are global."""
        return frames_and_queries(stream)

    def __call__(self, given: Reading) -> PackedOutput:
        """Shapes: T tokens -> last_hidden_state (T, H)."""
        hidden = embedded(self._embeddings, given)  # (T, H)
        everywhere = self.global_tokens(given.stream)
        patterns = {
            window: near_or_global(given.stream.places, window, reach, everywhere)
            for window, reach in self._windows.items()
        }
        steps = [
            partial(
                layer,
                bounds=given.stream.bounds,
                pattern=patterns[layer.window],
                everywhere=everywhere,
                attention=given.attention,
            )
            for layer in self._layers
        ]
        return run_layers(steps, given, hidden)


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
        bounds: InputBounds,
        pattern: Pattern,
        everywhere: GlobalTokens,
        attention: Attention,
    ) -> Tensor:
        """Shapes: (T, H) -> (T, H)."""
        projected = self._projected(hidden).view(len(hidden), 5, self._heads, -1)  # (T, 5, A, D)
        query, key, value, global_key, global_value = projected.unbind(1)  # (T, A, D) each
        mixed = attention(Heads(query, key, value, bounds, bounds), pattern).flatten(1)  # (T, H)
        asking = hidden.index_select(0, everywhere.indices)  # (G, H)
        global_query = self._global_query(asking).unflatten(1, (self._heads, -1))  # (G, A, D)
        heads = Heads(global_query, global_key, global_value, everywhere.bounds, bounds)
        over_all = attention(heads, EVERY_TOKEN)  # (G, A, D)
        mixed = mixed.index_copy(0, everywhere.indices, over_all.flatten(1))  # (T, H)
        output: Tensor = self._transformed(mixed, hidden)
        return output


def near_or_global(places: Tensor, window: int, reach: Tensor, everywhere: GlobalTokens) -> Pattern:
    """Let tokens see those at most `window` places away, and the global ones.

    Shapes: places (T,), reach (), the window once more.
    """
    global_flags = everywhere.flags  # (T,)

    def sees_in_stream(batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
        return sees(places[own], places[other], reach, global_flags[other])

    return Pattern(
        sees=sees_in_stream, near=window, far_seen=everywhere.leading, far_seen_last=everywhere.trailing
    )


def _projections(own: Any) -> list[Any]:
    return [own.query, own.key, own.value, own.key_global, own.value_global]


LONGFORMER = Forms(
    call=with_global_attention,
    packed=PackedLongformer,
    packed_in_classifier=PackedLongformerInClassifier,
    head=first_alone,
    dense=dense_layers,
)
