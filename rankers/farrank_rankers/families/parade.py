"""PARADE's light forms: a document's vector is the mean, maximum or attention-weighted sum of its chunks'."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.families.passages import AvgP, Head
from farrank_rankers.family import EvidenceKind, ParadeAttnOptions
from farrank_rankers.features import Features
from farrank_rankers.spec import RankerSpec


class ParadeAvg(AvgP):
    """Score a document by the mean of its chunks' vectors, F(mean_i cls_i): AvgP, but windows slide.

    Source: Li et al., TOIS 2024.
    """


class ParadeMax(Aggregator[Tensor]):
    """Score a document by the maximum of its chunks' vectors in each dimension, F(max_i cls_i).

    Source: Li et al., TOIS 2024.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.head = Head(transformers_config(config).hidden_size)

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> Tensor:
        """Return the features: no work is shared by all masks. Shapes: (D, C, H) -> (D, C, H)."""
        return features.vectors

    def score(self, state: Tensor, masks: Tensor) -> Tensor:
        """Shapes: state (D, C, H), masks (V, D, C) -> (V, D)."""
        present = state.masked_fill(~masks[..., None], -torch.inf)  # (V, D, C, H)
        return self.head(present.amax(dim=2))  # (V, D)


class AttendedVectors(NamedTuple):
    """Chunks' vectors and their attention logits.

    Shapes: vectors (D, C, H), logits (D, C, 1) or (D, C, H).
    """

    vectors: Tensor
    logits: Tensor

    def weights(self, masks: Tensor) -> Tensor:
        """Take the softmax over the chunks of each mask. Shapes: (…, D, C) -> (…, D, C, 1 or H)."""
        return self.logits.masked_fill(~masks[..., None], -torch.inf).softmax(dim=-2)


class ParadeAttn(Aggregator[AttendedVectors]):
    """Score a document by a weighted sum of its chunks' vectors: w = softmax_i(C·cls_i), F(Σ_i w_i cls_i).

    C is a vector and a bias; `per_dimension` makes it a matrix, (H, H), and gives each dimension its own
    softmax over chunks. A chunk's weight is then the mean over dimensions.

    Source: Li et al., TOIS 2024; the form per dimension is that of Boytsov et al.'s published code.
    """

    evidence = EvidenceKind.ATTENTION

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden_size = transformers_config(config).hidden_size
        per_dimension = spec.options_as(ParadeAttnOptions).per_dimension
        self.attention = nn.Linear(hidden_size, hidden_size if per_dimension else 1)
        self.head = Head(hidden_size)

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> AttendedVectors:
        """Shapes: (D, C, H), (D, C) -> vectors and logits of (D, C, …)."""
        present = features.vectors.masked_fill(~chunk_mask[:, :, None], 0.0)  # (D, C, H)
        return AttendedVectors(present, self.attention(present))

    def score(self, state: AttendedVectors, masks: Tensor) -> Tensor:
        """Shapes: masks (V, D, C) -> (V, D)."""
        return self.head((state.weights(masks) * state.vectors).sum(dim=2))  # (V, D)

    def chunk_scores(self, state: AttendedVectors, chunk_mask: Tensor, scores: Tensor) -> Tensor:
        """Return the attention's weights. Shapes: (D, C) -> (D, C)."""
        return state.weights(chunk_mask).mean(dim=-1)
