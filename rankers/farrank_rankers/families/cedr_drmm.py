"""CEDR-DRMM: counts of similarities, in bins."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.aggregate import Aggregate, Aggregator, EvidenceKind, check_chunks, leave_one_out
from farrank_rankers.families.cedr import cedr_sizes, mean_cls, similarities
from farrank_rankers.families.token_interaction import Texts, asked_slots, over_chunks, texts
from farrank_rankers.features import Features
from farrank_rankers.spec import RankerSpec

BINS = 11  # ten over [−1, 1), the last for exact matches
HIDDEN = 5


class CedrDrmm(Aggregator):
    """Score a document by histograms of its tokens' similarities, one a query token and layer, and its [CLS].

    A query token's score is an MLP of log(1e-5 + count) for all bins and layers and of the mean [CLS]; the
    document's is their sum. No gradient flows through counts: the backbone learns from [CLS] alone. A chunk's
    evidence is what the score loses without its tokens and its [CLS]; the query's vectors stay those of the
    first chunk.

    Shapes: features (D, C, S, L+1, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    Source: MacAvaney et al., SIGIR 2019; the histograms Guo et al., CIKM 2016.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        layers, hidden_size = cedr_sizes(config)
        self.layers, self.max_query_tokens = layers, spec.max_query_tokens
        self.hidden = nn.Linear(BINS * layers + hidden_size, HIDDEN)
        self.output = nn.Linear(HIDDEN, 1)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, S, L+1, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        asked = asked_slots(features, self.max_query_tokens)  # (D, Q)
        groups = texts(features, chunk_mask, asked, pair_values=self.layers)
        counts = torch.cat([histograms(group) for group in groups])  # (D, Q, C, B·(L+1))

        def score(masks: Tensor) -> Tensor:
            logs = (over_chunks(counts, masks) + 1e-5).log()  # (V, D, Q, B·(L+1))
            cls = mean_cls(features, masks)[:, :, None].expand(-1, -1, logs.shape[2], -1)  # (V, D, Q, H)
            hidden = self.hidden(torch.cat([logs, cls], dim=-1)).relu()  # (V, D, Q, 5)
            each: Tensor = self.output(hidden).squeeze(-1)  # (V, D, Q)
            return each.masked_fill(~asked, 0.0).sum(dim=2)

        return leave_one_out(score, chunk_mask)


@torch.no_grad()
def histograms(text: Texts) -> Tensor:
    """Count each chunk's similarities with each query token in bins of width 0.2.

    The millionth lets a cosine of 1, rounded, reach the last bin.

    Shapes: N texts of (Q, L+1, H), (T, L+1, H), (T, C) -> (N, Q, C, B·(L+1)).
    """
    cosines = similarities(text.query, text.document)  # (N, L+1, Q, T)
    bins = ((cosines + 1.000001) / 2 * (BINS - 1)).floor().clamp(0, BINS - 1)  # (N, L+1, Q, T)
    membership = text.membership[:, None]  # (N, 1, T, C)
    counts = [
        (bins == number).to(cosines.dtype) @ membership for number in range(BINS)
    ]  # (N, L+1, Q, C) each
    return torch.stack(counts).permute(1, 3, 4, 0, 2).flatten(3)  # (N, Q, C, B·(L+1))
