"""Cross-encoders, with logits aggregated over chunks.

Each is a sequence classifier of transformers, or a backbone with a head of its own.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from farrank_rankers.aggregate import ChunkScoreAggregator
from farrank_rankers.backbones.build_backbone import build_backbone, build_classifier
from farrank_rankers.encoder import Encoder
from farrank_rankers.families.head import build_head, head_weights
from farrank_rankers.family import CrossEncoderOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec


class LogitEncoder(Encoder):
    """Encode a query-chunk pair as its raw logit.

    With two labels the score is the positive minus the negative logit: the log-odds of the positive class
    (label 1), so that chunks rank as by its softmax probability.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        own = spec.options_as(CrossEncoderOptions).head
        # The heads of BERT-like models read only the first token; ModernBERT's may read the mean.
        self.pooling = self.facts.pooling if own is None else own.pooling
        self.reads_first_tokens_alone = self.pooling == "cls"
        self.head: nn.Sequential | None = None
        if own is not None:
            backbone: Any = self.backbone
            self.head = build_head(own.layers, int(backbone.config.hidden_size))

    def build(self, spec: RankerSpec, config: Mapping[str, Any]) -> nn.Module:
        """Build a classifier, which includes its head, or the backbone of a head of its own."""
        alone = spec.options_as(CrossEncoderOptions).head is not None
        return build_backbone(spec, config) if alone else build_classifier(spec, config)

    def own_weights(self, published: Mapping[str, Tensor], reader: Reader) -> dict[str, Tensor]:
        """Take the head's weights, which have the same names."""
        return head_weights(published)

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: logits (P, 1) or (P, 2), or last_hidden_state (…, H) -> (P, 1)."""
        if self.head is None:
            return relevance(output.logits)
        hidden: Tensor = output.last_hidden_state
        # A sum of many tokens in bf16 would lose small differences between them.
        mean = self.pooling == "mean"
        pooled = tokens.mean(hidden.float()).to(hidden.dtype) if mean else tokens.first(hidden)  # (P, H)
        return relevance(self.head(pooled))


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
