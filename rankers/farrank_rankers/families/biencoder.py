"""Bi-encoders: query and chunks are encoded apart, their vectors' inner products aggregated over chunks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farrank_rankers.aggregate import Aggregate, Aggregator, combine
from farrank_rankers.backbones.build_backbone import build_backbone
from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.family import BiEncoderOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec


class TextEncoder(Encoder):
    """Encode a query or a chunk as one vector: the mean of its tokens or the first, of unit length if asked.

    Pooling and the norm are computed in fp32 whatever the backbone's precision.

    Shapes: input_ids, roles, token_type_ids (P, L) -> (P, H) fp32.
    Source: Reimers & Gurevych, EMNLP 2019; steps of positions: Zhu et al., "LongEmbed", EMNLP 2024.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        facts = BackboneFacts.from_config(config)
        super().__init__(build_backbone(spec, config), facts)
        self.options = biencoder_options(spec)
        step = self.options.position_step
        if step > 1 and facts.max_positions is None:
            raise SpecError(
                f"position_step is {step}; it must be 1: {spec.backbone} has no table of positions"
            )
        if facts.max_positions is not None and step > facts.max_positions:
            raise SpecError(
                f"position_step is {step}; it must be at most the {facts.max_positions} positions "
                f"of {spec.backbone}"
            )
        self.position_step = step
        self.reads_first_tokens_alone = self.options.pooling == "cls"

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (P, H)."""
        hidden = output.last_hidden_state.float()  # (…, H)
        vectors = tokens.first(hidden) if self.options.pooling == "cls" else tokens.mean(hidden)  # (P, H)
        return Features(torch.nn.functional.normalize(vectors, dim=-1) if self.options.normalize else vectors)


class SimilarityAggregator(Aggregator):
    """Take the first, mean, maximum or sum of the chunks' inner products with the query.

    Shapes: features (D, C, H), chunk_mask (D, C), query (D, H) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk or the query is None.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.aggregation = biencoder_options(spec).aggregation

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, H), (D, C), (D, H) -> (D,), (D, C)."""
        if query is None:
            raise ValueError("query is None; a bi-encoder compares chunks with the query's vector")
        similarities = (features.vectors @ query.vectors[:, :, None]).squeeze(-1)  # (D, C)
        return combine(similarities, chunk_mask, self.aggregation)


def biencoder_options(spec: RankerSpec) -> BiEncoderOptions:
    """Return the options as what they are.

    Raises: SpecError if the spec is another family's.
    """
    if not isinstance(spec.options, BiEncoderOptions):
        raise SpecError(f"options are {type(spec.options).__name__}; they must be BiEncoderOptions")
    return spec.options
