"""Neural Model 1: how likely a document's tokens translate into the query's."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregate, Aggregator, EvidenceKind, check_chunks, leave_one_out
from farrank_rankers.backbones.build_backbone import build_backbone, transformers_config
from farrank_rankers.backbones.facts import BackboneFacts
from farrank_rankers.encoder import Encoder
from farrank_rankers.families.cedr import asked_slots, over_chunks, texts
from farrank_rankers.features import Features, Layout
from farrank_rankers.spec import RankerSpec

WIDTH = 128
LEAST_PROBABILITY = 1e-7


class ProjectedTokenEncoder(Encoder):
    """Encode a query-chunk pair as narrow vectors of its tokens: LayerNorm, tanh and a projection.

    Shapes: input_ids, roles, token_type_ids (P, S) -> (P, S, 128), roles (P, S).
    Source: Boytsov & Kolter, ECIR 2021 (arXiv 2102.06815).
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(build_backbone(spec, config), BackboneFacts.from_config(config))
        hidden_size = transformers_config(config).hidden_size
        self.norm = nn.LayerNorm(hidden_size)
        self.projection = nn.Linear(hidden_size, WIDTH)

    def read(self, output: Any, tokens: Layout) -> Features:
        """Shapes: last_hidden_state (…, H) -> (…, 128)."""
        return Features(self.projection(self.norm(output.last_hidden_state).tanh()), tokens.roles)


class NeuralModel1(Aggregator):
    """Score a document by the log-likelihood of the query, each token translated from those of the document.

    Σ_q log(max(1e-7, mean_t T(q|d_t))) with T(q|d) = σ(F3(relu(F2(relu(F1([x, y, x∘y])))))), x and y the
    vectors of query and document token; [CLS] takes no part. An empty document has probability 0 before the
    maximum. A chunk's evidence is what the score loses without its tokens; the query's vectors stay those of
    the first chunk. That F1 and F2 are as wide as the vectors is our choice.

    The authors withheld their code because it might be subject to a third party's patent.

    Shapes: features (D, C, S, 128), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: Boytsov & Kolter, ECIR 2021 (arXiv 2102.06815); Model 1 Berger & Lafferty, SIGIR 1999.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.max_query_tokens = spec.max_query_tokens
        self.f1 = nn.Linear(3 * WIDTH, WIDTH)
        self.f2 = nn.Linear(WIDTH, WIDTH)
        self.f3 = nn.Linear(WIDTH, 1)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, S, 128), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        asked = asked_slots(features, self.max_query_tokens)  # (D, Q)
        sums: list[Tensor] = []
        lengths: list[Tensor] = []
        for text in texts(features, chunk_mask, asked, pair_values=WIDTH):
            sums.append(self.translation(text.query, text.document) @ text.membership)  # (N, Q, C)
            lengths.append(text.membership.sum(dim=1))  # (N, C)
        likelihoods, tokens = torch.cat(sums), torch.cat(lengths)[:, None]  # (D, Q, C), (D, 1, C)

        def score(masks: Tensor) -> Tensor:
            mean = over_chunks(likelihoods, masks) / over_chunks(tokens, masks).clamp(min=1)  # (V, D, Q)
            return mean.clamp(min=LEAST_PROBABILITY).log().masked_fill(~asked, 0.0).sum(dim=2)  # (V, D)

        return leave_one_out(score, chunk_mask)

    def translation(self, query: Tensor, document: Tensor) -> Tensor:
        """Compute T(q|d), the first layer in its three parts: two of them need no pairs.

        Shapes: (N, Q, 128), (N, T, 128) -> (N, Q, T).
        """
        of_query, of_document, of_both = self.f1.weight.chunk(3, dim=1)  # (128, 128) each
        x, y = query[:, :, None], document[:, None]  # (N, Q, 1, 128), (N, 1, T, 128)
        first = (x * y) @ of_both.T + x @ of_query.T + y @ of_document.T + self.f1.bias  # (N, Q, T, 128)
        second = self.f2(first.relu()).relu()  # (N, Q, T, 128)
        translated: Tensor = self.f3(second).squeeze(-1).sigmoid()  # (N, Q, T)
        return translated
