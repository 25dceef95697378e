"""Any sequence-classification cross-encoder of transformers, its logits aggregated over chunks."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from farrank_rankers.aggregate import Aggregate, Aggregator, combine
from farrank_rankers.backbones.build_backbone import build_classifier
from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.family import CrossEncoderOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec


class LogitEncoder(Encoder):
    """Encode a query-chunk pair as its raw logit.

    Of two labels the score is positive minus negative logit: the log-odds of the positive class (label 1), so
    that chunks rank as by its softmax probability.

    Shapes: input_ids, roles, token_type_ids (P, L) -> (P, 1).
    """

    # As the heads of `first_token.KIN` do.
    reads_first_tokens_alone = True

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(build_classifier(spec, config), BackboneFacts.from_config(config))

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: logits (P, 1) or (P, 2) -> (P, 1)."""
        logits: Tensor = output.logits
        if logits.shape[1] == 1:
            return Features(logits)
        return Features(logits[:, 1:] - logits[:, :1])  # (P, 1)


class LogitAggregator(Aggregator):
    """Take the first, mean, maximum or sum of the chunks' logits, as the spec's options say.

    Shapes: features (D, C, 1), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        if not isinstance(spec.options, CrossEncoderOptions):
            raise SpecError(f"options are {type(spec.options).__name__}; they must be CrossEncoderOptions")
        self.aggregation = spec.options.aggregation

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, 1), (D, C) -> (D,), (D, C)."""
        return combine(features.vectors.squeeze(-1), chunk_mask, self.aggregation)
