"""AvgP: a document is the average of its chunks."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from farrank_rankers.aggregate import Aggregate, Aggregator, check_chunks
from farrank_rankers.backbones.transformers_config import transformers_config
from farrank_rankers.families.vector_encoder import Head
from farrank_rankers.features import Features
from farrank_rankers.spec import RankerSpec


class AvgP(Aggregator):
    """Score a document by the mean of its chunks' vectors, F(mean_i cls_i).

    F is affine, so that F(cls_i) is exactly what chunk i brings to the mean, and serves as its chunk score.

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: MacAvaney et al., SIGIR 2019 (CEDR's vanilla BERT on long documents).
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.head = Head(transformers_config(config).hidden_size)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        present = features.vectors.masked_fill(~chunk_mask[:, :, None], 0.0)  # (D, C, H)
        mean = present.sum(dim=1) / chunk_mask.sum(dim=1, keepdim=True)  # (D, H)
        chunk_scores = self.head(present).masked_fill(~chunk_mask, float("-inf"))  # (D, C)
        return Aggregate(self.head(mean), chunk_scores)
