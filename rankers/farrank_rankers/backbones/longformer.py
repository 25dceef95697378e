"""Longformer: tokens see their neighbours and a few global tokens, which see all with separate projections.

`is_global` and `sees` define the attention; the dense form for traced graphs and the packed form use them.
Padded batches use transformers' own sparse attention.

Source: Beltagy et al., arXiv 2004.05150 (global attention on the question, for question answering).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farrank_rankers.backbones.bert import after_attention, attend_seen, first_alone
from farrank_rankers.backbones.forms import Forms, Replacement
from farrank_rankers.packed.packed_backbone import (
    Compile,
    LayerParts,
    PackedArguments,
    PackedLayer,
    PackedTransformer,
)
from farrank_rankers.packed.pattern import EVERY_TOKEN, Heads, Pattern
from farrank_rankers.packed.stream import InputBounds, TokenStream, uploaded
from farrank_rankers.tokens import Role

Array = TypeVar("Array", Tensor, NDArray[Any])


def is_global(roles: Array, special_tokens: Array) -> Array:
    """Mark the first two special tokens of each input, and its query.

    `special_tokens` counts an input's special tokens up to each token, itself included.
    Shapes: (…) each -> (…) bool.
    """
    return ((roles == Role.SPECIAL) & (special_tokens <= 2)) | (roles == Role.QUERY)


def sees(own: Tensor, other: Tensor, reach: Tensor | int, other_is_global: Tensor) -> Tensor:
    """Whether a token sees another: at most `reach` places away, or global. Global tokens see all.

    Shapes: places own and other, other_is_global, any that fit together -> bool.
    """
    return ((own - other).abs() <= reach) | other_is_global


def global_positions(roles: Tensor) -> Tensor:
    """Mark the global tokens of a padded batch. Shapes: (P, L) -> (P, L) bool."""
    return is_global(roles, (roles == Role.SPECIAL).cumsum(dim=1))


def with_global_attention(backbone: nn.Module, roles: Tensor, inputs: Mapping[str, Any]) -> Any:
    """Call Longformer with global attention on [CLS], the query and the first [SEP].

    For a classifier, transformers itself gives only the first token global attention, as in training.
    transformers pads to a multiple of the attention window and masks this padding.
    """
    if getattr(backbone, "base_model", backbone) is not backbone:
        return backbone(**inputs)
    mask = global_positions(roles).to(inputs["attention_mask"].dtype)  # (P, L)
    return backbone(**inputs, global_attention_mask=mask)


class DenseLongformer(nn.Module):
    """A layer's attention over all pairs under a mask; the signature is that of transformers.

    attention_mask is positive for global tokens, negative for padding.
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


class GlobalTokens(NamedTuple):
    """A stream's global tokens; each is among the first `leading` or last `trailing` tokens of its input.

    `bounds` divide them into inputs.
    Shapes: flags (T,) bool, indices (G,) int64, ascending.
    """

    flags: Tensor
    indices: Tensor
    bounds: InputBounds
    leading: int
    trailing: int

    @classmethod
    def of(cls, stream: TokenStream, flags: NDArray[np.bool_]) -> "GlobalTokens":
        """Make tokens global, at least one per input. This runs on the host, without waiting for the device.

        Shapes: flags (T,).
        """
        lengths = np.asarray(stream.bounds.lengths)  # (P,)
        starts, ends = np.cumsum(lengths) - lengths, np.repeat(lengths, lengths)  # (P,), (T,)
        places = np.arange(len(flags)) - np.repeat(starts, lengths)  # (T,)
        # The lengths of the runs in front, and the start of the rest.
        runs = np.minimum.reduceat(np.where(flags, ends, places), starts)  # (P,)
        is_rest = flags & (places >= np.repeat(runs, lengths))  # (T,)
        rests = np.minimum.reduceat(np.where(is_rest, places, ends), starts)  # (P,)
        counts = np.add.reduceat(flags, starts, dtype=np.int64)  # (P,)
        (indices,) = flags.nonzero()  # (G,)
        offsets = np.concatenate(([0], counts.cumsum()))  # (P + 1,)
        parts = (flags, indices, offsets)
        all_parts = uploaded(np.concatenate(parts), stream.inputs.device)
        on_device = torch.split(all_parts, [len(part) for part in parts])
        bounds = InputBounds(on_device[2].int(), tuple(counts.tolist()))
        return cls(on_device[0].bool(), on_device[1], bounds, int(runs.max()), int((lengths - rests).max()))


def first_tokens(stream: TokenStream) -> GlobalTokens:
    """Make each input's first token global."""
    flags = np.zeros(len(stream.host_roles), dtype=bool)
    flags[stream.starts] = True
    return GlobalTokens.of(stream, flags)


def frames_and_queries(stream: TokenStream) -> GlobalTokens:
    """Make each input's first two special tokens global, and its query, as for padded batches."""
    special = stream.host_roles == Role.SPECIAL  # (T,)
    before = (special.cumsum() - special)[stream.starts]  # (P,), in the inputs in front
    counted = special.cumsum() - np.repeat(before, stream.bounds.lengths)  # (T,)
    return GlobalTokens.of(stream, is_global(stream.host_roles, counted))


class PackedLongformerLayer(PackedLayer):
    """A post-norm layer. Shapes: (T, H) -> (T, H)."""

    def mixed(self, hidden: Tensor, given: PackedArguments, shared: Any) -> Tensor:
        """Attend to near and global tokens; global tokens attend to all. Shapes: (T, H) -> (T, A, D)."""
        own, (everywhere, patterns) = self.layer.attention.self, shared
        projected = self.projected(hidden).view(len(hidden), 5, self.heads, -1)  # (T, 5, A, D)
        query, key, value, global_key, global_value = projected.unbind(1)  # (T, A, D) each
        mixed = given.attend((query, key, value), patterns[own.one_sided_attn_window_size])  # (T, A, D)
        asking = own.query_global(hidden.index_select(0, everywhere.indices))  # (G, H)
        global_query = asking.unflatten(1, (self.heads, -1))  # (G, A, D)
        heads = Heads(global_query, global_key, global_value, everywhere.bounds, given.stream.bounds)
        return mixed.index_copy(0, everywhere.indices, given.attention(heads, EVERY_TOKEN))


class PackedLongformer(PackedTransformer):
    """A transformers Longformer without a head: [CLS], the query and the first [SEP] are global.

    Shapes: T tokens -> last_hidden_state (T, H).
    """

    layer_class = PackedLongformerLayer
    global_tokens = staticmethod(frames_and_queries)

    def __init__(self, model: Any, compile_by: Compile) -> None:
        super().__init__(model, compile_by)
        device = model.embeddings.word_embeddings.weight.device
        windows = {layer.attention.self.one_sided_attn_window_size for layer in model.encoder.layer}
        # Tensors, each (): a mask compiled for streams of any length must not contain a number.
        self._windows = {window: torch.tensor(window, device=device) for window in windows}

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Split a post-norm layer into its parts."""
        own = layer.attention.self
        projections = [own.query, own.key, own.value, own.key_global, own.value_global]
        return LayerParts(projections, own.num_heads, after_attention(layer))

    def shared(self, given: PackedArguments, hidden: Tensor) -> tuple[GlobalTokens, Mapping[int, Pattern]]:
        """Give the global tokens, and the pattern of each window."""
        everywhere, places = self.global_tokens(given.stream), given.stream.places
        return everywhere, {
            window: near_or_global(places, window, reach, everywhere)
            for window, reach in self._windows.items()
        }


class PackedLongformerInClassifier(PackedLongformer):
    """A Longformer below a classifier: only the first token is global, as in training."""

    global_tokens = staticmethod(first_tokens)


def near_or_global(places: Tensor, window: int, reach: Tensor, everywhere: GlobalTokens) -> Pattern:
    """Let tokens see tokens at most `window` places away, and global ones.

    Shapes: places (T,), reach (), the window once more.
    """
    global_flags = everywhere.flags  # (T,)

    def sees_in_stream(batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
        return sees(places[own], places[other], reach, global_flags[other])

    return Pattern(
        sees=sees_in_stream, near=window, far_seen=everywhere.leading, far_seen_last=everywhere.trailing
    )


LONGFORMER = Forms(
    call=with_global_attention,
    packed=PackedLongformer,
    packed_in_classifier=PackedLongformerInClassifier,
    head=first_alone,
    dense=dense_layers,
)
