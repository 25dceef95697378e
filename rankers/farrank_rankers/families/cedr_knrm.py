"""CEDR-KNRM: soft counts of similarities, by Gaussian kernels."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregate, Aggregator, EvidenceKind, check_chunks, leave_one_out
from farrank_rankers.families.cedr import cedr_sizes, mean_cls, similarities
from farrank_rankers.families.token_interaction import Texts, asked_slots, over_chunks, texts
from farrank_rankers.features import Features
from farrank_rankers.spec import RankerSpec

# The last kernel counts exact matches.
MEANS = (-0.9, -0.7, -0.5, -0.3, -0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
DEVIATIONS = (0.1,) * 10 + (0.001,)


class CedrKnrm(Aggregator):
    """Score a document by how many of its tokens lie how near to the query's, layer by layer, and its [CLS].

    For kernel k and layer l, φ_kl = Σ_q log(1e-6 + Σ_t exp(−(s_lqt − μ_k)² / 2σ_k²)), μ and σ trained; the
    score is linear in φ and the mean [CLS]. A chunk's evidence is what the score loses without its tokens and
    its [CLS]; the query's vectors stay those of the first chunk.

    Shapes: features (D, C, S, L+1, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: MacAvaney et al., SIGIR 2019; the kernels Xiong et al., SIGIR 2017.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        layers, hidden_size = cedr_sizes(config)
        self.means = nn.Parameter(torch.tensor(MEANS))
        self.deviations = nn.Parameter(torch.tensor(DEVIATIONS))
        self.layers, self.max_query_tokens = layers, spec.max_query_tokens
        self.combine = nn.Linear(len(MEANS) * layers + hidden_size, 1)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, S, L+1, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        asked = asked_slots(features, self.max_query_tokens)  # (D, Q)
        groups = texts(features, chunk_mask, asked, pair_values=self.layers)
        counts = torch.cat([self.soft_counts(group) for group in groups])  # (D, Q, C, K·(L+1))

        def score(masks: Tensor) -> Tensor:
            logs = (over_chunks(counts, masks) + 1e-6).log()  # (V, D, Q, K·(L+1))
            kernels = logs.masked_fill(~asked[:, :, None], 0.0).sum(dim=2)  # (V, D, K·(L+1))
            scores: Tensor = self.combine(torch.cat([kernels, mean_cls(features, masks)], dim=2))  # (V, D, 1)
            return scores.squeeze(-1)

        return leave_one_out(score, chunk_mask)

    def soft_counts(self, text: Texts) -> Tensor:
        """Sum each kernel's values over each chunk; one kernel at a time, each needs as much as the cosines.

        Shapes: N texts of (Q, L+1, H), (T, L+1, H), (T, C) -> (N, Q, C, K·(L+1)).
        """
        cosines = similarities(text.query, text.document)  # (N, L+1, Q, T)
        membership = text.membership[:, None]  # (N, 1, T, C)
        sums = [
            ((cosines - mean) / deviation).square().mul(-0.5).exp() @ membership  # (N, L+1, Q, C)
            for mean, deviation in zip(self.means, self.deviations, strict=True)
        ]
        return torch.stack(sums).permute(1, 3, 4, 0, 2).flatten(3)  # (N, Q, C, K·(L+1))
