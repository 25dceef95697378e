"""DeBERTa-v2 and -v3: attention to contents, and between contents and distances.

Source: He et al., "DeBERTa", ICLR 2021; He et al., "DeBERTaV3", ICLR 2023.
"""

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from farrank_rankers.backbones.bert import after_attention
from farrank_rankers.backbones.forms import Forms, Replacement
from farrank_rankers.packed.packed_backbone import (
    Compile,
    LayerParts,
    PackedArguments,
    PackedLayer,
    PackedTransformer,
)
from farrank_rankers.packed.pattern import EVERY_TOKEN, Pattern, Score
from farrank_rankers.packed.stream import TokenStream


class Slots(NamedTuple):
    """The row of each distance -R … R in the table of distances; distances beyond have the first or last row.

    `reach`, R, is a tensor, too: a function compiled for any length must not contain a number.
    Shapes: rows (2R + 1,) int32, reach ().
    """

    rows: Tensor
    reach: Tensor


class PackedDebertaLayer(PackedLayer):
    """A post-norm layer with disentangled attention. Shapes: (T, H) -> (T, H).

    A token's scores for all distances are stored while the layer runs, 2S for each head and kind: for v3-base
    24 KiB per token in half precision for both kinds.
    """

    def mixed(self, hidden: Tensor, given: PackedArguments, shared: Any) -> Tensor:
        """Shapes: hidden (T, H), shared (2S, H) and `Slots` -> (T, A, D)."""
        distances, slots = shared
        projected = self.projected(hidden).view(len(hidden), 3, self.heads, -1)  # (T, 3, A, D)
        query, key, value = projected.unbind(1)  # (T, A, D) each
        pattern, own = EVERY_TOKEN, self.layer.attention.self
        # transformers counts them even if attention is not relative.
        asks_distances, distances_ask = "c2p" in own.pos_att_type, "p2c" in own.pos_att_type
        scale = (query.shape[-1] * (1 + asks_distances + distances_ask)) ** -0.5
        if distances is not None and slots is not None and (asks_distances or distances_ask):
            asked = asking = None
            if asks_distances:
                layer = own.key_proj if own.share_att_key else own.pos_key_proj
                asked = self._scored(query, layer(distances) * scale)  # (A, T, 2S)
            if distances_ask:
                layer = own.query_proj if own.share_att_key else own.pos_query_proj
                asking = self._scored(key, layer(distances) * scale)  # (A, T, 2S)
            pattern = Pattern(rescored=_disentangled(asked, asking, given.stream.places, slots))
        return given.attend((query, key, value), pattern, scale)

    def _scored(self, tokens: Tensor, distances: Tensor) -> Tensor:
        """Score all pairs of tokens and distances. Shapes: (T, A, D), (2S, A·D) -> (A, T, 2S)."""
        rows = distances.view(len(distances), self.heads, -1)  # (2S, A, D)
        return torch.matmul(tokens.transpose(0, 1), rows.permute(1, 2, 0))


def _disentangled(asked: Tensor | None, asking: Tensor | None, places: Tensor, slots: Slots) -> Score:
    """Add the scores of a pair's distance with the querying token, and with the token seen.

    Shapes: asked, asking (A, T, 2S), places (T,).
    """
    rows, reach = slots

    def rescored(score: Tensor, batch: Tensor, head: Tensor, own: Tensor, other: Tensor) -> Tensor:
        slot = rows[(places[own] - places[other]).clamp(-reach, reach) + reach]
        if asked is not None:
            score = score + asked[head, own, slot]
        if asking is not None:
            score = score + asking[head, other, slot]
        return score

    return rescored


def distance_slots(buckets: int, furthest: int) -> Tensor:
    """Give the rows of `Slots`.

    The buckets in the middle hold single distances; outer buckets grow logarithmically, up to `furthest`.
    Without buckets (0 or fewer) each distance up to `furthest` has a row.
    Shapes: -> (2R + 1,) int32.
    """
    # Twice the furthest distance is in the last row for every rounding of the logarithm.
    reach = 2 * furthest
    distances = torch.arange(-reach, reach + 1)  # (2R + 1,)
    if buckets <= 0:
        return (distances + furthest).clamp(0, 2 * furthest - 1).int()
    middle = buckets // 2
    size = distances.abs().clamp(min=middle)
    # In fp32 and in this order, as in training: a distance at a border must stay in the same bucket.
    spread = torch.log(size / middle) / torch.log(torch.tensor((furthest - 1) / middle))
    wide = (torch.ceil(spread * (middle - 1)) + middle).long() * distances.sign()
    bucket = torch.where(distances.abs() <= middle, distances, wide)
    return (bucket + buckets).clamp(0, 2 * buckets - 1).int()


def pooled_by_head(model: Any, tokens: TokenStream, hidden: Tensor) -> Tensor:
    """Pass the first token to the head's pooler, then to the classifier. Shapes: (T, H) -> (P, labels)."""
    first = tokens.first(hidden)[:, None]  # (P, 1, H), inputs of one token
    return model.classifier(model.pooler(first))


class PackedDeberta(PackedTransformer):
    """A transformers DeBERTa-v2. Shapes: T tokens -> last_hidden_state (T, H)."""

    layer_class = PackedDebertaLayer

    def __init__(self, model: Any, compile_by: Compile) -> None:
        super().__init__(model, compile_by)
        self._slots: Slots | None = None
        own = model.encoder.layer[0].attention.self
        if own.relative_attention:
            slots = distance_slots(int(own.position_buckets), int(own.max_relative_positions))
            device = own.query_proj.weight.device
            self._slots = Slots(slots.to(device), torch.tensor(len(slots) // 2, device=device))

    @classmethod
    def serves(cls, model: Any) -> bool:
        """Whether there is no convolution (v2-xlarge) and no second pass, and buckets have a middle."""
        buckets = [getattr(layer.attention.self, "position_buckets", 0) for layer in model.encoder.layer]
        halved = all(each % 2 == 0 or each < 0 for each in buckets)
        return super().serves(model) and model.encoder.conv is None and model.z_steps <= 1 and halved

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Split a post-norm layer into its parts."""
        own = layer.attention.self
        projections = [own.query_proj, own.key_proj, own.value_proj]
        return LayerParts(projections, own.num_attention_heads, after_attention(layer))

    def shared(self, given: PackedArguments, hidden: Tensor) -> tuple[Tensor | None, Slots | None]:
        """Give the vectors of distances (2S, H), only the trained rows, and their slots."""
        return self.model.encoder.get_rel_embedding(), self._slots


def one_length(model: Any) -> Iterable[Replacement]:
    """Spare a graph the question whether there are as many keys as queries: an encoder always has.

    transformers 4 asks it in compiled code. torch's older tracer, which optimum uses, makes a branch of it,
    and OpenVINO refuses branches whose results have an unknown number of dimensions.
    """
    yield Replacement(sys.modules[type(model).__module__], "build_rpos", _same_distances)


def _same_distances(query: Tensor, key: Tensor, distances: Tensor, buckets: int, furthest: int) -> Tensor:
    return distances


DEBERTA = Forms(packed=PackedDeberta, head=pooled_by_head, dense=one_length)
