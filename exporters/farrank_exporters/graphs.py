"""A ranker's two halves as exporters and runtimes see them: tensors by position in, tensors out."""

import copy

from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.encoder import Encoder
from farrank_rankers.features import Features

ENCODER_INPUTS = ("input_ids", "roles", "token_type_ids")
# The second is the features' roles, of tokens alone; a graph has no two values of one name.
ENCODER_OUTPUTS = ("vectors", "token_roles")
AGGREGATOR_OUTPUTS = ("scores", "chunk_scores")


class EncoderGraph(nn.Module):
    """An encoder that gives its features as a tuple, `vectors` in fp32 whatever it computes in.

    Shapes: (P, L) each -> vectors (P, F) or (P, S, F…) [, token_roles (P, S)].
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Shapes: (P, L) each -> (P, …) [, (P, S)]."""
        features: Features = self.encoder(input_ids, roles, token_type_ids)
        vectors = features.vectors.float()
        # Most encoders hand their input on; a value that is input and output at once would have two names.
        return (vectors,) if features.roles is None else (vectors, features.roles.clone())


class AggregatorGraph(nn.Module):
    """An aggregator that takes its features apart: `roles` of tokens alone, a query only in a dual plan.

    Shapes: vectors (D, C, …), chunk_mask (D, C), roles (D, C, S), query_vectors (D, …), query_roles (D, Q)
    -> scores (D,), chunk_scores (D, C).
    """

    def __init__(self, aggregator: Aggregator) -> None:
        super().__init__()
        self.aggregator = aggregator

    def forward(
        self,
        vectors: Tensor,
        chunk_mask: Tensor,
        roles: Tensor | None = None,
        query_vectors: Tensor | None = None,
        query_roles: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Shapes: (D, C, …), (D, C) [, (D, C, S)] [, (D, …) [, (D, Q)]] -> (D,), (D, C)."""
        query = None if query_vectors is None else Features(query_vectors, query_roles)
        result = self.aggregator(Features(vectors, roles), chunk_mask, query)
        return result.scores, result.chunk_scores


def half_precision(encoder: Encoder) -> Encoder:
    """Copy an encoder in fp16; its families widen what fp16 cannot hold, as they do for bf16."""
    return copy.deepcopy(encoder).half()
