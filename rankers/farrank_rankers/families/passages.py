"""FirstP, LongP, MaxP, SumP and AvgP: a document's score from one vector a chunk."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregate, Aggregator, check_chunks, combine
from farrank_rankers.backbones.build_backbone import build_backbone, transformers_config
from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.family import Aggregation, VectorOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec


class VectorEncoder(Encoder):
    """Encode a query-chunk pair as one vector of the last layer: [CLS], or the mean of its tokens.

    Shapes: input_ids, roles, token_type_ids (P, L) -> (P, H).
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(build_backbone(spec, config), BackboneFacts.from_config(config))
        if not isinstance(spec.options, VectorOptions):
            raise SpecError(f"options are {type(spec.options).__name__}; they must be VectorOptions")
        self.pooling = spec.options.pooling
        self.reads_first_tokens_alone = self.pooling == "cls"

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (P, H)."""
        hidden: Tensor = output.last_hidden_state
        # A mean of many tokens in bf16 would lose the small differences between them.
        return Features(tokens.first(hidden) if self.pooling == "cls" else tokens.mean(hidden.float()))


class Head(nn.Module):
    """F in the papers: Dropout(0.1) and a linear layer to one score, Xavier-initialised.

    Shapes: (…, H) -> (…).
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """Shapes: (…, H) -> (…)."""
        scores: Tensor = self.linear(self.dropout(vectors))  # (…, 1)
        return scores.squeeze(-1)


class FirstP(Aggregator):
    """Score a document by its first chunk, F(cls_1); later chunks, if any, do not count.

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: Dai & Callan, SIGIR 2019.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.head = Head(transformers_config(config).hidden_size)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, H), (D, C) -> (D,), (D, C)."""
        present = features.vectors.masked_fill(~chunk_mask[:, :, None], 0.0)  # (D, C, H)
        return combine(self.head(present), chunk_mask, "first")


class LongP(FirstP):
    """Score a document as one chunk, as long as the backbone reads, F(pooled).

    What sets it apart from FirstP is its window, which is the whole document unless the backbone has fewer
    positions, and the pooling that goes with its backbones: [CLS], or the mean of all tokens.

    Shapes: features (D, C, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: the long-document cross-encoders of Boytsov et al., arXiv 2207.01262.
    """


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
