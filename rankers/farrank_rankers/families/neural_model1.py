"""Neural Model 1: the probability that a document's tokens translate into the query's."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregator
from farrank_rankers.backbones.build_backbone import transformers_config
from farrank_rankers.encoder import Encoder
from farrank_rankers.families.cedr import over_chunks, query_slots, texts
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import Role

WIDTH = 128
MIN_PROBABILITY = 1e-7


class ProjectedTokenEncoder(Encoder):
    """Encode a query-chunk pair as narrow vectors of its tokens: LayerNorm, tanh and a projection.

    The query's tokens have their own projection, P_q in the paper; the document's have P_d.

    Source: Boytsov & Kolter, ECIR 2021 (arXiv 2102.06815).
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        hidden_size = transformers_config(config).hidden_size
        self.norm = nn.LayerNorm(hidden_size)
        self.query_projection = nn.Linear(hidden_size, WIDTH)
        self.document_projection = nn.Linear(hidden_size, WIDTH)

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (…, 128)."""
        normed = self.norm(output.last_hidden_state).tanh()  # (…, H)
        of_query = (tokens.roles == Role.QUERY)[..., None]  # (…, 1)
        projected = torch.where(of_query, self.query_projection(normed), self.document_projection(normed))
        return Features(projected, tokens.roles)


class Translations(NamedTuple):
    """Each chunk's part of the translation probabilities of each query token, and its number of tokens.

    Shapes: sums (D, Q, C), lengths (D, C), query_mask (D, Q).
    """

    sums: Tensor
    lengths: Tensor
    query_mask: Tensor


class NeuralModel1(Aggregator[Translations]):
    """Score a document by the log-likelihood of the query, each token translated from those of the document.

    Σ_q log(max(1e-7, mean_t T(q|d_t))) with T(q|d) = σ(F3(relu(F2(relu(F1([x, y, x∘y])))))), x and y the
    vectors of query and document token; [CLS] is not used. An empty document has probability 0 before the
    maximum. A chunk's evidence is the loss of score without its tokens; the query's vectors stay those of the
    first chunk. The widths of F1 and F2, equal to that of the vectors, are our choice.

    The authors withheld their code because it might be subject to a third party's patent.

    Source: Boytsov & Kolter, ECIR 2021 (arXiv 2102.06815); Model 1 Berger & Lafferty, SIGIR 1999.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.max_query_tokens = spec.max_query_tokens
        self.f1 = nn.Linear(3 * WIDTH, WIDTH)
        self.f2 = nn.Linear(WIDTH, WIDTH)
        self.f3 = nn.Linear(WIDTH, 1)

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> Translations:
        """Shapes: (D, C, S, 128), (D, C) -> sums (D, Q, C), lengths (D, C)."""
        query_mask = query_slots(features, self.max_query_tokens)  # (D, Q)
        sums: list[Tensor] = []
        lengths: list[Tensor] = []
        for text in texts(features, chunk_mask, query_mask, pair_values=WIDTH):
            sums.append(self.translation(text.query, text.document) @ text.membership)  # (N, Q, C)
            lengths.append(text.membership.sum(dim=1))  # (N, C)
        return Translations(torch.cat(sums), torch.cat(lengths), query_mask)

    def score(self, state: Translations, masks: Tensor) -> Tensor:
        """Shapes: masks (V, D, C) -> (V, D)."""
        tokens = over_chunks(state.lengths[:, None], masks).clamp(min=1)  # (V, D, 1)
        mean = over_chunks(state.sums, masks) / tokens  # (V, D, Q)
        logs = mean.clamp(min=MIN_PROBABILITY).log()  # (V, D, Q)
        return logs.masked_fill(~state.query_mask, 0.0).sum(dim=2)

    def translation(self, query: Tensor, document: Tensor) -> Tensor:
        """Compute T(q|d); each query vector turns the first layer into a layer on the document's vectors.

        The products x∘y, which would be the largest tensor here, are never stored.
        Shapes: (N, Q, 128), (N, T, 128) -> (N, Q, T).
        """
        of_query, of_document, of_both = self.f1.weight.chunk(3, dim=1)  # (128, 128) each
        weights = query[:, :, None] * of_both + of_document  # (N, Q, 128, 128)
        constant = (query @ of_query.T + self.f1.bias)[:, :, None]  # (N, Q, 1, 128)
        first = document[:, None] @ weights.transpose(2, 3) + constant  # (N, Q, T, 128)
        second = self.f2(first.relu()).relu()  # (N, Q, T, 128)
        return self.f3(second).squeeze(-1).sigmoid()  # (N, Q, T)
