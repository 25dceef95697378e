"""DeBERTa-v2 and -v3: attention to contents, and between contents and distances.

Source: He et al., "DeBERTa", ICLR 2021; He et al., "DeBERTaV3", ICLR 2023.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from farrank_rankers.backbones.bert import after_attention
from farrank_rankers.backbones.forms import Forms
from farrank_rankers.packed.packed_backbone import (
    Compile,
    LayerParts,
    PackedLayer,
    PackedTransformer,
    Reading,
)
from farrank_rankers.packed.pattern import EVERY_TOKEN, Pattern, Score
from farrank_rankers.packed.stream import TokenStream


class Slots(NamedTuple):
    """Which row of the table of distances each of the distances -R … R has; those beyond have the ends'.

    `reach`, R, is a tensor as well: a function that is compiled for any length must hold no number.
    Shapes: rows (2R + 1,) int32, reach ().
    """

    rows: Tensor
    reach: Tensor


class PackedDebertaLayer(PackedLayer):
    """A post-norm layer with disentangled attention. Shapes: (T, H) -> (T, H).

    A token's scores for all distances are written down, 2S for each head and kind: of v3-base, 24 KiB a token
    in half precision for both, for as long as the layer runs.
    """

    def mixed(self, hidden: Tensor, given: Reading, shared: Any) -> Tensor:
        """Shapes: hidden (T, H), shared (2S, H) and `Slots` -> (T, A, D)."""
        distances, slots = shared
        projected = self.projected(hidden).view(len(hidden), 3, self.heads, -1)  # (T, 3, A, D)
        query, key, value = projected.unbind(1)  # (T, A, D) each
        pattern, own = EVERY_TOKEN, self.layer.attention.self
        # Counted by transformers even where attention is not relative.
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
        """Score tokens and distances, all pairs. Shapes: (T, A, D), (2S, A·D) -> (A, T, 2S)."""
        rows = distances.view(len(distances), self.heads, -1)  # (2S, A, D)
        return torch.matmul(tokens.transpose(0, 1), rows.permute(1, 2, 0))


def _disentangled(asked: Tensor | None, asking: Tensor | None, places: Tensor, slots: Slots) -> Score:
    """Add what a pair's distance scores with the token that asks, and with the one that is seen.

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

    The middle of the buckets are single distances, further out they widen with the logarithm, up to
    `furthest`. Without buckets (0 or fewer) each distance has a row, up to `furthest`.
    Shapes: -> (2R + 1,) int32.
    """
    # At twice the furthest distance the last row is reached, however the logarithm is rounded.
    reach = 2 * furthest
    distances = torch.arange(-reach, reach + 1)  # (2R + 1,)
    if buckets <= 0:
        return (distances + furthest).clamp(0, 2 * furthest - 1).int()
    middle = buckets // 2
    size = distances.abs().clamp(min=middle)
    # In fp32 and in this order, as in training: a distance on a border stays on its side.
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
        """Whether no convolution (v2-xlarge) and no second pass mixes tokens, and buckets have a middle."""
        buckets = [getattr(layer.attention.self, "position_buckets", 0) for layer in model.encoder.layer]
        halved = all(each % 2 == 0 or each < 0 for each in buckets)
        return super().serves(model) and model.encoder.conv is None and model.z_steps <= 1 and halved

    @staticmethod
    def parts(layer: Any) -> LayerParts:
        """Take a post-norm layer apart."""
        own = layer.attention.self
        projections = [own.query_proj, own.key_proj, own.value_proj]
        return LayerParts(projections, own.num_attention_heads, after_attention(layer))

    def shared(self, given: Reading, hidden: Tensor) -> tuple[Tensor | None, Slots | None]:
        """Give the vectors of distances (2S, H), no more rows are trained, and their slots."""
        return self.model.encoder.get_rel_embedding(), self._slots


DEBERTA = Forms(packed=PackedDeberta, head=pooled_by_head)
