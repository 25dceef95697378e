"""CEDR-PACRR: the strongest matches of n-grams, by convolutions."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from farrank_rankers.aggregate import Aggregate, Aggregator, EvidenceKind, check_chunks, leave_one_out
from farrank_rankers.families.cedr import Texts, asked_slots, cedr_sizes, mean_cls, similarities, texts
from farrank_rankers.features import Features
from farrank_rankers.spec import RankerSpec

LONGEST_NGRAM = 3
FILTERS = 32
STRONGEST = 2
HIDDEN = 32


class CedrPacrr(Aggregator):
    """Score a document by where its n-grams match those of the query best, over all layers, and its [CLS].

    For n = 1, 2, 3 a convolution of n×n over the similarities, layers as channels, gives each pair of
    positions its strongest filter; the two best document positions of each query position join the mean [CLS]
    in an MLP. There are always `max_query_tokens` query positions, those without a token similar to nothing;
    a document of fewer positions than two has zeros for the rest. A chunk's evidence is what the score loses
    without its tokens, its neighbours joined, and its [CLS]; the query's vectors stay the first chunk's.

    Shapes: features (D, C, S, L+1, H), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk, or its query too many tokens.
    Source: MacAvaney et al., SIGIR 2019; the convolutions Hui et al., EMNLP 2017 and WSDM 2018.
    """

    evidence = EvidenceKind.LEAVE_ONE_OUT

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__()
        layers, hidden_size = cedr_sizes(config)
        self.layers, self.query_positions = layers, spec.max_query_tokens
        self.ngrams = nn.ModuleList(NgramMatch(layers, size) for size in range(1, LONGEST_NGRAM + 1))
        matches = self.query_positions * LONGEST_NGRAM * STRONGEST
        self.dense = nn.Sequential(
            nn.Linear(matches + hidden_size, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1),
        )

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, S, L+1, H), (D, C) -> (D,), (D, C)."""
        check_chunks(chunk_mask)
        asked = asked_slots(features, self.query_positions)  # (D, Q)
        groups = texts(features, chunk_mask, asked, pair_values=self.layers)
        found = torch.cat([self.matches(group) for group in groups])  # (D, 1 + C, R·6)
        matches, matches_without = found[:, 0], found[:, 1:]  # (D, R·6), (D, C, R·6)

        def score(masks: Tensor) -> Tensor:
            left_out = (chunk_mask & ~masks)[..., None]  # (V, D, C, 1), one chunk or none
            joined = matches_without.masked_fill(~left_out, 0.0).sum(dim=2)  # (V, D, R·6)
            kept = torch.where(left_out.any(dim=2), joined, matches)  # (V, D, R·6)
            scores: Tensor = self.dense(torch.cat([kept, mean_cls(features, masks)], dim=2))  # (V, D, 1)
            return scores.squeeze(-1)

        return leave_one_out(score, chunk_mask)

    def matches(self, text: Texts) -> Tensor:
        """Find the strongest matches in each document, and behind those the ones in it without each chunk.

        Shapes: N texts of (Q, L+1, H), (T, L+1, H), (T, C) -> (N, 1 + C, R·6).
        """
        cosines = similarities(text.query, text.document)  # (N, L+1, Q, T)
        pairs = text.asked[:, None, :, None] & text.read[:, None, None]  # (N, 1, Q, T)
        missing = self.query_positions - cosines.shape[2]
        cosines = pad(cosines.masked_fill(~pairs, 0.0), (0, 0, 0, missing))  # (N, L+1, R, T)
        lengths = text.membership.sum(dim=1).long()  # (N, C)
        return torch.cat([ngram(cosines, lengths) for ngram in self.ngrams], dim=-1).flatten(2)


class NgramMatch(nn.Module):
    """The two strongest matches of each query n-gram in a document, and in that document without each chunk.

    Shapes: cosines (N, L+1, R, T), lengths (N, C) of the chunks -> (N, 1 + C, R, 2).
    """

    def __init__(self, layers: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.convolution = nn.Conv2d(layers, FILTERS, size)

    def forward(self, cosines: Tensor, lengths: Tensor) -> Tensor:
        """Shapes: (N, L+1, R, T), (N, C) -> (N, 1 + C, R, 2)."""
        # Zeros below and to the right for n-grams that end beyond the text. To the right as many again stand
        # for positions that a short document lacks.
        beyond = self.size - 1
        padded = pad(cosines, (0, beyond + STRONGEST, 0, beyond))  # (N, L+1, R+n−1, T+n+1)
        positions = torch.arange(cosines.shape[3] + STRONGEST, device=lengths.device)  # (T+2,)
        past = positions >= lengths.sum(dim=1, keepdim=True)  # (N, T+2)
        # No strength is negative, so a 0 never displaces one.
        strengths = self.strongest_filter(padded).masked_fill(past[:, None], 0.0)  # (N, R, T+2)
        with torch.no_grad():
            without = self.without_each(padded, strengths, lengths)
        return torch.cat([strengths.topk(STRONGEST).values[:, None], without], dim=1)

    def strongest_filter(self, cosines: Tensor) -> Tensor:
        """Convolve. Shapes: (N, L+1, R+n−1, T+n−1) -> (N, R, T)."""
        responses: Tensor = self.convolution(cosines).relu()  # (N, 32, R, T)
        return responses.amax(dim=1)

    def without_each(self, padded: Tensor, strengths: Tensor, lengths: Tensor) -> Tensor:
        """Find the strongest matches without each chunk.

        Only the n − 1 positions before a chunk see what follows it: there its neighbours are joined, all
        other strengths stand.

        Shapes: (N, L+1, R+n−1, T+n+1), (N, R, T+2), (N, C) -> (N, C, R, 2).
        """
        ends = lengths.cumsum(dim=1)[:, :, None]  # (N, C, 1)
        starts = ends - lengths[:, :, None]  # (N, C, 1)
        seam = torch.arange(self.size - 1, device=lengths.device)  # (n−1,)
        before, after = starts - (self.size - 1) + seam, ends + seam  # (N, C, n−1) each
        positions = torch.arange(strengths.shape[2], device=lengths.device)  # (T+2,)
        stands = (positions < starts - (self.size - 1)) | (positions >= ends)  # (N, C, T+2)
        kept = strengths[:, None].masked_fill(~stands[:, :, None], 0.0)  # (N, C, R, T+2)
        if self.size > 1:
            columns = torch.cat([before.clamp(min=0), after], dim=2)  # (N, C, 2n−2)
            every = columns.flatten(1)[:, None, None].expand(-1, *padded.shape[1:3], -1)
            around = padded.gather(3, every)  # (N, L+1, R+n−1, C·(2n−2))
            around = around.reshape(*around.shape[:3], *columns.shape[1:])  # (N, L+1, R+n−1, C, 2n−2)
            joined = self.strongest_filter(around.movedim(3, 1).flatten(0, 1))  # (N·C, R, n−1)
            joined = joined.reshape(*columns.shape[:2], *joined.shape[1:])  # (N, C, R, n−1)
            kept = torch.cat([kept, joined.masked_fill((before < 0)[:, :, None], 0.0)], dim=-1)
        return kept.topk(STRONGEST).values  # (N, C, R, 2)
