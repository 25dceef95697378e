"""Bi-encoders: query and chunks are encoded separately, and their inner products aggregated over chunks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farrank_rankers.aggregate import ChunkScoreAggregator
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.families.head import build_head, head_weights
from farrank_rankers.family import BiEncoderOptions
from farrank_rankers.features import Features, Layout
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec


class TextEncoder(Encoder):
    """Encode a query or chunk as one vector: its tokens' mean, first or last token, and linear layers on it.

    Pooling and norm are computed in fp32 for every precision of the backbone.
    Shapes: (P, L) each -> (P, K), K all dimensions of the last layer or of the backbone, or `truncate_dim` of
    them.

    Source: Reimers & Gurevych, EMNLP 2019; steps of positions: Zhu et al., "LongEmbed", EMNLP 2024.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        self.options = spec.options_as(BiEncoderOptions)
        step, positions = self.options.position_step, self.facts.max_positions
        if step > 1 and positions is None:
            raise SpecError(
                f"position_step is {step}; it must be 1: {spec.backbone} has no table of positions"
            )
        if positions is not None and step > positions:
            raise SpecError(
                f"position_step is {step}; it must be at most the {positions} positions of {spec.backbone}"
            )
        backbone: Any = self.backbone
        width = int(backbone.config.hidden_size)
        layers = self.options.head
        self.head = build_head(layers, width) if layers else None
        check_truncation(spec, layers[-1].width if layers else width)
        self.position_step = step
        self.reads_first_tokens_alone = self.options.pooling == "cls"

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (P, H)."""
        hidden: Tensor = output.last_hidden_state
        vectors = pooled(hidden, tokens, self.options)  # (P, H)
        return finished(vectors if self.head is None else self.head(vectors.to(hidden.dtype)), self.options)

    def own_weights(self, published: Mapping[str, Tensor], reader: Reader) -> dict[str, Tensor]:
        """Take the head's weights, which have the same names."""
        return head_weights(published)


def check_truncation(spec: RankerSpec, width: int) -> None:
    """Refuse a `truncate_dim` larger than a backbone's vectors. Raises: SpecError."""
    kept = spec.options_as(BiEncoderOptions).truncate_dim
    if kept is not None and kept > width:
        raise SpecError(
            f"truncate_dim is {kept}; it must be at most the {width} dimensions of {spec.backbone}"
        )


def pooled(hidden: Tensor, tokens: Layout, options: BiEncoderOptions) -> Tensor:
    """Make one vector of an input's token vectors, in fp32. Shapes: (…, H) -> (P, H)."""
    match options.pooling:
        case "cls":
            return tokens.first(hidden).float()
        case "last":
            return tokens.last(hidden).float()
        case "mean":
            return tokens.mean(hidden.float())


def finished(vectors: Tensor, options: BiEncoderOptions) -> Features:
    """Keep the first dimensions and normalise vectors, each if configured. Shapes: (P, H) -> (P, K)."""
    vectors = vectors[:, : options.truncate_dim].float()
    return Features(torch.nn.functional.normalize(vectors, dim=-1) if options.normalize else vectors)


class SimilarityAggregator(ChunkScoreAggregator):
    """Take the first, mean, maximum or sum of the chunks' inner products with the query.

    Raises: ValueError if the query is None.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.aggregation = spec.options_as(BiEncoderOptions).aggregation

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> Tensor:
        """Shapes: (D, C, H), (D, H) -> (D, C)."""
        if query is None:
            raise ValueError("query is None; a bi-encoder compares chunks with the query's vector")
        return (features.vectors @ query.vectors[:, :, None]).squeeze(-1)
