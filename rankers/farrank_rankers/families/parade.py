"""PARADE's light forms: a document is the average, the maximum or an attention's choice of its chunks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregate, Aggregator, check_chunks, leave_one_out
from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.errors import SpecError
from farrank_rankers.families.passages import AvgP, Head
from farrank_rankers.family import EvidenceKind, ParadeAttnOptions
from farrank_rankers.features import Features
from farrank_rankers.spec import RankerSpec


class ParadeAvg(AvgP):
    """Score a document by the mean of its chunks' vectors, F(mean_i cls_i): AvgP, but windows slide.

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: Li et al., TOIS 2024.
    """


class ParadeMax(Aggregator):
    """Score a document by the largest values of its chunks' vectors, F(max_i cls_i) in each dimension.

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: Li et al., TOIS 2024.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.head = Head(transformers_config(config).hidden_size)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)

        def score(masks: Tensor) -> Tensor:
            present = features.vectors.masked_fill(~masks[..., None], -torch.inf)  # (V, D, C, H)
            scores: Tensor = self.head(present.amax(dim=2))  # (V, D)
            return scores

        return leave_one_out(score, chunk_mask)


class ParadeAttn(Aggregator):
    """Score a document by a weighted sum of its chunks' vectors: w = softmax_i(C·cls_i), F(Σ_i w_i cls_i).

    C is a vector and a bias; `per_dimension` makes it a matrix, (H, H), and gives each dimension its own
    softmax over chunks. A chunk's weight is then the mean over dimensions.

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: Li et al., TOIS 2024; the form per dimension is that of Boytsov et al.'s published code.
    """

    evidence = EvidenceKind.ATTENTION

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        if not isinstance(spec.options, ParadeAttnOptions):
            raise SpecError(f"options are {type(spec.options).__name__}; they must be ParadeAttnOptions")
        hidden_size = transformers_config(config).hidden_size
        self.attention = nn.Linear(hidden_size, hidden_size if spec.options.per_dimension else 1)
        self.head = Head(hidden_size)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        absent = ~chunk_mask[:, :, None]  # (D, C, 1)
        present = features.vectors.masked_fill(absent, 0.0)  # (D, C, H)
        logits = self.attention(present).masked_fill(absent, -torch.inf)  # (D, C, 1) or (D, C, H)
        weights = logits.softmax(dim=1)  # (D, C, 1) or (D, C, H)
        scores = self.head((weights * present).sum(dim=1))  # (D,)
        return Aggregate(scores, weights.mean(dim=-1).masked_fill(~chunk_mask, -torch.inf))
