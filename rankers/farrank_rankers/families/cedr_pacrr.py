"""CEDR-PACRR: convolutions find the strongest matches of n-grams."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from farrank_rankers.aggregate import effects, leave_one_out_masks
from farrank_rankers.families.cedr import Cedr, TokenSimilarities, mean_cls
from farrank_rankers.spec import RankerSpec

LONGEST_NGRAM = 3
FILTERS = 32
STRONGEST = 2
HIDDEN = 32


class NgramMatches(NamedTuple):
    """Some documents' similarity matrix, and for each n the strength of the match of each pair of positions.

    Shapes: simmat (N, L+1, R, T), lengths (N, C) of the chunks, strengths (N, R, T+2) for each n.
    """

    simmat: Tensor
    lengths: Tensor
    strengths: tuple[Tensor, ...]


class Matches(NamedTuple):
    """The groups of documents in their order, and each chunk's [CLS]. Shapes: cls (D, C, H)."""

    groups: tuple[NgramMatches, ...]
    cls: Tensor


class CedrPacrr(Cedr[Matches]):
    """Score a document by its n-grams' best matches with the query's, over all layers, and its [CLS].

    For n = 1, 2, 3 a convolution of n×n over the similarities, layers as channels, gives each pair of
    positions its strongest filter; the two best document positions of each query position join the mean [CLS]
    in an MLP. There are always `max_query_tokens` query positions; those without a token have no similarity.
    Missing positions of a document of fewer than two have zeros. A chunk's evidence is the loss of score
    without its tokens, with its neighbours joined, and without its [CLS]; the query's vectors stay the first
    chunk's.

    Raises: ValueError if a query has too many tokens.
    Source: MacAvaney et al., SIGIR 2019; the convolutions Hui et al., EMNLP 2017 and WSDM 2018.
    """

    def __init__(self, spec: RankerSpec, config: Mapping[str, Any]) -> None:
        super().__init__(spec, config)
        self.ngrams = nn.ModuleList(NgramMatch(self.layers, size) for size in range(1, LONGEST_NGRAM + 1))
        matches = self.max_query_tokens * LONGEST_NGRAM * STRONGEST
        self.dense = nn.Sequential(
            nn.Linear(matches + self.hidden_size, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1),
        )

    def match(self, groups: Iterable[TokenSimilarities], cls: Tensor) -> Matches:
        """Shapes: cls (D, C, H) -> groups of the D documents."""
        matched = []
        for group in groups:
            pairs = group.query_mask[:, None, :, None] & group.doc_mask[:, None, None]  # (N, 1, Q, T)
            missing = self.max_query_tokens - group.simmat.shape[2]
            simmat = pad(group.simmat.masked_fill(~pairs, 0.0), (0, 0, 0, missing))  # (N, L+1, R, T)
            lengths = group.membership.sum(dim=1).long()  # (N, C)
            strengths = tuple(ngram(simmat, lengths) for ngram in self.ngrams)  # (N, R, T+2) each
            matched.append(NgramMatches(simmat, lengths, strengths))
        return Matches(tuple(matched), cls)

    def score(self, state: Matches, masks: Tensor) -> Tensor:
        """Shapes: masks (V, D, C) -> (V, D). The matches are those in whole documents under every mask."""
        strongest = [
            torch.cat([each.topk(STRONGEST).values for each in group.strengths], dim=-1).flatten(1)
            for group in state.groups
        ]
        matches = torch.cat(strongest)[None].expand(masks.shape[0], -1, -1)  # (V, D, R·6)
        return self._scores(matches, state.cls, masks)

    def chunk_scores(self, state: Matches, chunk_mask: Tensor, scores: Tensor) -> Tensor:
        """Score documents without each chunk: the matches change only around it.

        Shapes: chunk_mask (D, C), scores (D,) -> (D, C).
        """
        without = [
            torch.cat(
                [
                    cast(NgramMatch, ngram).without_each(group.simmat, group.lengths, strengths)
                    for ngram, strengths in zip(self.ngrams, group.strengths, strict=True)
                ],
                dim=-1,
            ).flatten(2)
            for group in state.groups
        ]  # (N, C, R·6) each
        matches = torch.cat(without).transpose(0, 1)  # (C, D, R·6)
        return effects(scores, self._scores(matches, state.cls, leave_one_out_masks(chunk_mask)), chunk_mask)

    def _scores(self, matches: Tensor, cls: Tensor, masks: Tensor) -> Tensor:
        """Shapes: (V, D, R·6), (D, C, H), (V, D, C) -> (V, D)."""
        return self.dense(torch.cat([matches, mean_cls(cls, masks)], dim=2)).squeeze(-1)


class NgramMatch(nn.Module):
    """The strengths of matches of query and document n-grams, with all chunks or without one.

    Shapes: simmat (N, L+1, R, T), lengths (N, C) of the chunks -> (N, R, T+2), 0 beyond the document.
    """

    def __init__(self, layers: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.convolution = nn.Conv2d(layers, FILTERS, size)

    def forward(self, simmat: Tensor, lengths: Tensor) -> Tensor:
        """Shapes: (N, L+1, R, T), (N, C) -> (N, R, T+2)."""
        positions = torch.arange(simmat.shape[3] + STRONGEST, device=lengths.device)  # (T+2,)
        past = positions >= lengths.sum(dim=1, keepdim=True)  # (N, T+2)
        # No strength is negative, so a 0 never displaces one.
        return self.strongest_filter(self.padded(simmat)).masked_fill(past[:, None], 0.0)

    def padded(self, simmat: Tensor) -> Tensor:
        """Add zeros below and to the right for n-grams that end beyond the text.

        Two more columns on the right replace positions that a short document lacks.
        Shapes: (N, L+1, R, T) -> (N, L+1, R+n−1, T+n+1).
        """
        return pad(simmat, (0, self.size - 1 + STRONGEST, 0, self.size - 1))

    def strongest_filter(self, padded: Tensor) -> Tensor:
        """Convolve. Shapes: (N, L+1, R+n−1, T+n−1) -> (N, R, T)."""
        responses: Tensor = self.convolution(padded).relu()  # (N, 32, R, T)
        return responses.amax(dim=1)

    def without_each(self, simmat: Tensor, lengths: Tensor, strengths: Tensor) -> Tensor:
        """Find the strongest matches in the document without each chunk.

        Only the n − 1 positions before a chunk see the text after it: there its neighbours are joined. All
        other strengths do not change.

        Shapes: (N, L+1, R, T), (N, C), (N, R, T+2) -> (N, C, R, 2).
        """
        padded = self.padded(simmat)  # (N, L+1, R+n−1, T+n+1)
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
