"""MaxP and SumP: a document is its best chunk, or all its chunks together."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from farrank_rankers.aggregate import Aggregate, Aggregator, combine
from farrank_rankers.backbones.transformers_config import transformers_config
from farrank_rankers.families.vector_encoder import Head
from farrank_rankers.family import Aggregation
from farrank_rankers.features import Features
from farrank_rankers.spec import RankerSpec


class MaxP(Aggregator):
    """Keep the best chunk's score for each document, max_i F(cls_i).

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: Dai & Callan, SIGIR 2019.
    """

    aggregation: ClassVar[Aggregation] = "max"

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.head = Head(transformers_config(config).hidden_size)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, H), (D, C) -> (D,), (D, C)."""
        present = features.vectors.masked_fill(~chunk_mask[:, :, None], 0.0)  # (D, C, H)
        return combine(self.head(present), chunk_mask, self.aggregation)


class SumP(MaxP):
    """Add up the chunks' scores for each document, Σ_i F(cls_i).

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: Dai & Callan, SIGIR 2019.
    """

    aggregation: ClassVar[Aggregation] = "sum"
