"""PARADE Transformer with the query: its tokens join the chunks in the aggregator's input."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from farrank_rankers.aggregate import Aggregate, Aggregator, check_chunks, leave_one_out
from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.backbones.build import build_backbone
from farrank_rankers.backbones.transformers_config import transformers_config
from farrank_rankers.encoder import Encoder
from farrank_rankers.errors import SpecError
from farrank_rankers.families.parade_transformer import check_chunk_positions
from farrank_rankers.families.vector_encoder import Head
from farrank_rankers.families.vector_transformer import Part, VectorTransformer
from farrank_rankers.family import EvidenceKind, ParadeQueryOptions
from farrank_rankers.features import Features
from farrank_rankers.layout import Layout
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role


class QueryEncoder(Encoder):
    """Encode a query-chunk pair as the last layer's first vector ([CLS]) and those of the query's tokens.

    Shapes: input_ids, roles, token_type_ids (P, L) -> (P, 1 + Q, H), the chunk's roles PADDING.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(build_backbone(spec, config), BackboneFacts.from_config(config))
        self.kept = 1 + max(spec.max_query_tokens, spec.pad_query_to or 0)

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (P, 1 + Q, H)."""
        found = tokens.leading(tokens.roles, self.kept)  # (P, 1 + Q)
        is_first = torch.arange(self.kept, device=found.device) == 0  # (1 + Q,)
        dropped = (found != Role.QUERY) & ~is_first  # (P, 1 + Q)
        vectors = tokens.leading(output.last_hidden_state, self.kept)  # (P, 1 + Q, H)
        return Features(
            vectors.masked_fill(dropped[:, :, None], 0.0), found.masked_fill(dropped, Role.PADDING)
        )


class ParadeTransfQuery(Aggregator):
    """PARADE Transf-PRETR-Q: F(Agg(C, S, q_1 … q_Q, S, cls_1 … cls_m, S)[0]).

    The query's vectors are those of the first chunk, also where the evidence leaves that chunk out. One
    linear layer projects them and the chunks'. Segment ids are 1 for the chunks and 0 for all else. With
    `pad_query_to` the query takes that many positions here, too.

    Shapes: features (D, C, 1 + Q, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: SpecError if query and chunks may exceed the transformer's positions; ValueError if a document
    has no chunk.
    Source: Boytsov et al., 2022 (arXiv 2207.01262, version 1), equation 2.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        if not isinstance(spec.options, ParadeQueryOptions):
            raise SpecError(f"options are {type(spec.options).__name__}; they must be ParadeQueryOptions")
        shape, use_separators = spec.options.transformer, spec.options.use_separators
        self.query_positions = spec.pad_query_to or 0
        query = max(spec.max_query_tokens, self.query_positions)
        check_chunk_positions(spec, shape, beside=query + (4 if use_separators else 1))
        self.transformer = VectorTransformer(transformers_config(config).hidden_size, shape, use_separators)
        self.head = Head(shape.width)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, 1 + Q, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        if features.roles is None:
            raise ValueError("features have no roles; PARADE with the query reads vectors of tokens")
        missing = max(0, self.query_positions + 1 - features.roles.shape[2])
        query_vectors = pad(features.vectors[:, 0, 1:], (0, 0, 0, missing))  # (D, Q, H)
        present = pad(features.roles[:, 0, 1:] == Role.QUERY, (0, missing))  # (D, Q)
        held = torch.arange(present.shape[1], device=present.device) < self.query_positions  # (Q,)
        first = Part(query_vectors, present, placed=present | held)
        chunks = features.vectors[:, :, 0]  # (D, C, H)

        def score(masks: Tensor) -> Tensor:
            scores: Tensor = self.head(self.transformer.under(masks, chunks, first))  # (V, D)
            return scores

        return leave_one_out(score, chunk_mask)
