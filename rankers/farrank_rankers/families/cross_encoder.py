"""Cross-encoders: any sequence classifier of transformers, with logits aggregated over chunks."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from farrank_rankers.aggregate import ChunkScoreAggregator
from farrank_rankers.backbones.build_backbone import build_classifier
from farrank_rankers.encoder import Encoder
from farrank_rankers.family import CrossEncoderOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec


class LogitEncoder(Encoder):
    """Encode a query-chunk pair as its raw logit.

    With two labels the score is the positive minus the negative logit: the log-odds of the positive class
    (label 1), so that chunks rank as by its softmax probability.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        # The heads of BERT-like models read only the first token; ModernBERT's may read the mean.
        self.reads_first_tokens_alone = self.facts.pooling == "cls"

    def build(self, spec: RankerSpec, config: Mapping[str, Any]) -> nn.Module:
        """Build a classifier, which includes its head."""
        return build_classifier(spec, config)

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: logits (P, 1) or (P, 2) -> (P, 1)."""
        return relevance(output.logits)


def relevance(logits: Tensor) -> Features:
    """Take a pair's only logit, or the log-odds of two. Shapes: (P, 1) or (P, 2) -> (P, 1)."""
    return Features(logits if logits.shape[1] == 1 else logits[:, 1:] - logits[:, :1])


class LogitAggregator(ChunkScoreAggregator):
    """Take the first, mean, maximum or sum of the chunks' logits, by the spec's options."""

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.aggregation = spec.options_as(CrossEncoderOptions).aggregation

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> Tensor:
        """Shapes: (D, C, 1) -> (D, C)."""
        return features.vectors.squeeze(-1)
