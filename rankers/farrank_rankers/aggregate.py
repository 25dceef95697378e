"""From features of chunks to scores of documents: the light half of a ranker."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from farrank_rankers.family import Aggregation, EvidenceKind
from farrank_rankers.features import Features
from farrank_rankers.tokenizer import Frame

__all__ = ["Aggregate", "Aggregator", "EvidenceKind", "combine", "leave_one_out"]


# Chunks that are read at once where some are left out; a transformer 768 wide makes 50 MB of so many.
GROUP_CHUNKS = 2**12


class Aggregate(NamedTuple):
    """Shapes: scores (D,), chunk_scores (D, C), which are −inf where there is no chunk."""

    scores: Tensor
    chunk_scores: Tensor


class Aggregator(nn.Module):
    """Base of the families' aggregators; `evidence` says what their chunk scores mean.

    Called with the features of D documents of C chunks, (D, C, …), with chunk_mask (D, C) bool and, if the
    plan is dual, with the features of each document's query, (D, …). Values under a false mask, and token
    vectors of role PADDING, are never looked at: they may be anything, NaN included.
    """

    evidence: EvidenceKind = EvidenceKind.CHUNK_SCORE

    def start_from(self, backbone: nn.Module, frame: Frame) -> None:
        """Take over what a new aggregator has from its backbone, now that it has its weights: mostly nothing.

        `frame` holds the ids of the tokenizer's special tokens.
        """

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Aggregate:
        """Shapes: (D, C, …), (D, C), (D, …) -> (D,), (D, C); ValueError if a document has no chunk."""
        raise NotImplementedError


def combine(chunk_scores: Tensor, chunk_mask: Tensor, aggregation: Aggregation) -> Aggregate:
    """Make the chunks' scores a document's: that of the first chunk, or the mean, maximum or sum of all.

    Shapes: chunk_scores (D, C), chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    Raises: ValueError if a document has no chunk.
    """
    check_chunks(chunk_mask)
    present = chunk_scores.masked_fill(~chunk_mask, 0.0)  # (D, C)
    evidence = chunk_scores.masked_fill(~chunk_mask, -torch.inf)  # (D, C)
    if aggregation == "first":
        first = torch.arange(chunk_mask.shape[1], device=chunk_mask.device) == 0  # (C,)
        return Aggregate(evidence[:, 0], evidence.masked_fill(~first, -torch.inf))
    if aggregation == "max":
        return Aggregate(evidence.amax(dim=1), evidence)
    total = present.sum(dim=1)  # (D,)
    if aggregation == "sum":
        return Aggregate(total, evidence)
    return Aggregate(total / chunk_mask.sum(dim=1), evidence)


def leave_one_out(score: Callable[[Tensor], Tensor], chunk_mask: Tensor) -> Aggregate:
    """Score documents; a chunk's own score is how much its document's falls without it.

    `score` gives the documents' scores under each of V chunk masks, (V, D, C) -> (V, D). A document's only
    chunk cannot be left out: its effect is 0. No gradient flows through evidence.
    Shapes: chunk_mask (D, C) -> scores (D,), chunk_scores (D, C).
    """
    scores = score(chunk_mask[None])[0]  # (D,)
    with torch.no_grad():
        alone = chunk_mask.sum(dim=1) == 1  # (D,)
        left_out = torch.eye(chunk_mask.shape[1], dtype=torch.bool, device=chunk_mask.device)  # (C, C)
        masks = chunk_mask & (~left_out[:, None] | alone[:, None])  # (C, D, C)
        without = torch.cat([score(some) for some in _affordable(masks)])  # (C, D)
        effects = (scores - without).masked_fill(alone, 0.0).T  # (D, C)
    return Aggregate(scores, effects.masked_fill(~chunk_mask, -torch.inf))


def _affordable(masks: Tensor) -> Sequence[Tensor]:
    """Divide masks into groups of at most GROUP_CHUNKS chunks. Shapes: (V, D, C) -> (…, D, C) each."""
    if torch.compiler.is_compiling():  # a traced graph has no loop over numbers that it does not know
        return [masks]
    return torch.split(masks, max(1, GROUP_CHUNKS // masks[0].numel()))


def check_chunks(chunk_mask: Tensor) -> None:
    """Refuse a document without a first chunk.

    Raises: ValueError naming the row.
    """
    if torch.compiler.is_compiling():  # a traced graph cannot look at values
        return
    missing = (~chunk_mask[:, 0]).nonzero()
    if len(missing):
        raise ValueError(
            f"chunk_mask: document {int(missing[0])} has no chunk; every document has at least 1"
        )
