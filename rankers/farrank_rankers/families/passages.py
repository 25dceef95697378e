"""FirstP, LongP, MaxP, SumP and AvgP: a document's score from one vector per chunk."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregator, ChunkScoreAggregator
from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.encoder import Encoder
from farrank_rankers.family import Aggregation, EvidenceKind, VectorOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec


class VectorEncoder(Encoder):
    """Encode a query-chunk pair as one vector of the last layer: [CLS], or the mean of its tokens."""

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        self.pooling = spec.options_as(VectorOptions).pooling
        self.reads_first_tokens_alone = self.pooling == "cls"

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (P, H)."""
        hidden: Tensor = output.last_hidden_state
        # A mean of many tokens in bf16 would lose small differences between them.
        return Features(tokens.first(hidden) if self.pooling == "cls" else tokens.mean(hidden.float()))


class Head(nn.Module):
    """F in the papers: Dropout(0.1) and a linear layer to one score, Xavier-initialised."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """Shapes: (…, H) -> (…)."""
        return self.linear(self.dropout(vectors)).squeeze(-1)


class MaxP(ChunkScoreAggregator):
    """Keep the best chunk's score for each document, max_i F(cls_i).

    Source: Dai & Callan, SIGIR 2019.
    """

    aggregation: Aggregation = "max"

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.head = Head(transformers_config(config).hidden_size)

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> Tensor:
        """Score each chunk. Shapes: (D, C, H), (D, C) -> (D, C)."""
        present = features.vectors.masked_fill(~chunk_mask[:, :, None], 0.0)  # (D, C, H)
        return self.head(present)  # (D, C)


class SumP(MaxP):
    """Add up the chunks' scores for each document, Σ_i F(cls_i).

    Source: Dai & Callan, SIGIR 2019.
    """

    aggregation: Aggregation = "sum"


class FirstP(MaxP):
    """Score a document by its first chunk, F(cls_1); later chunks, if any, do not count.

    Source: Dai & Callan, SIGIR 2019.
    """

    aggregation: Aggregation = "first"


class LongP(FirstP):
    """Score a document as one chunk, as long as the backbone allows, F(pooled).

    It differs from FirstP in its window, which is the whole document unless the backbone has fewer positions,
    and in the pooling of its backbones: [CLS], or the mean of all tokens.

    Source: the long-document cross-encoders of Boytsov et al., arXiv 2207.01262.
    """


class AvgP(Aggregator[Tensor]):
    """Score a document by the mean of its chunks' vectors, F(mean_i cls_i).

    F is affine: F(cls_i) is exactly the contribution of chunk i to the mean, and is its chunk score.

    Source: MacAvaney et al., SIGIR 2019 (CEDR's vanilla BERT on long documents).
    """

    evidence = EvidenceKind.CHUNK_SCORE

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.head = Head(transformers_config(config).hidden_size)

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> Tensor:
        """Set places without a chunk to 0. Shapes: (D, C, H), (D, C) -> (D, C, H)."""
        return features.vectors.masked_fill(~chunk_mask[:, :, None], 0.0)

    def score(self, state: Tensor, masks: Tensor) -> Tensor:
        """Shapes: state (D, C, H), masks (V, D, C) -> (V, D)."""
        total = torch.einsum("dch,vdc->vdh", state, masks.to(state.dtype))  # (V, D, H)
        return self.head(total / masks.sum(dim=2, keepdim=True))  # (V, D)

    def chunk_scores(self, state: Tensor, chunk_mask: Tensor, scores: Tensor) -> Tensor:
        """Shapes: state (D, C, H) -> (D, C)."""
        return self.head(state)
