"""Aggregators turn features of chunks into scores of documents: the light half of a ranker.

`Aggregator` is the base class of every family's aggregator. A family writes two methods, `interact` and
`score`; from these the base class makes `forward`, which returns only scores, and `explain`, which also
returns each chunk's contribution.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from farrank_rankers.family import Aggregation, EvidenceKind
from farrank_rankers.features import Features
from farrank_rankers.tokenizer import Frame

State = TypeVar("State")

# Chunks to read at once when some are left out. A transformer of width 768 needs 50 MB for this number.
GROUP_CHUNKS = 2**12

# A text's score depends on its place in a batch from the seventh digit on. After rounding, equal documents
# have equal scores and keep the order in which they came.
SCORE_DECIMALS = 6


class Explanation(NamedTuple):
    """Scores of documents and evidence of their chunks.

    Shapes: scores (D,), chunk_scores (D, C), −inf at places without a chunk.
    """

    scores: Tensor
    chunk_scores: Tensor


class Aggregator(nn.Module, Generic[State]):
    """Base of the families' aggregators; `evidence` is the meaning of their chunk scores.

    With `learns_as_backbone` the weights have the backbone's learning rate, not that of new weights.

    All methods take the features of D documents of C chunks, (D, C, …), chunk_mask (D, C) bool and, if the
    plan is dual, the features of each document's query, (D, …). Values under a false mask, and token vectors
    of role PADDING, are never read: they may be anything, NaN included.

    `interact` does the work that does not depend on which chunks count, and returns a state of the family's
    own type. `score` computes the documents' scores from this state under each of V chunk masks. Only
    `explain` computes chunk scores: training and plain scoring do not pay for them.
    """

    evidence: EvidenceKind = EvidenceKind.LEAVE_ONE_OUT
    learns_as_backbone: bool = False

    def start_from(self, backbone: nn.Module, frame: Frame) -> None:
        """Initialise a new aggregator from the backbone, which has its weights.

        Most families need nothing. `frame` holds the tokenizer's special tokens around a pair: each of its
        parts is an array (3, special tokens there), and the ids are the first row.
        """

    def interact(self, features: Features, chunk_mask: Tensor, query: Features | None) -> State:
        """Read the features once. Shapes: (D, C, …), (D, C), (D, …) -> the family's state."""
        raise NotImplementedError

    def score(self, state: State, masks: Tensor) -> Tensor:
        """Score the documents under each of V chunk masks. Shapes: masks (V, D, C) -> (V, D)."""
        raise NotImplementedError

    def chunk_scores(self, state: State, chunk_mask: Tensor, scores: Tensor) -> Tensor:
        """Compute how much each document's score falls without each of its chunks.

        A family whose chunks have their own scores or weights returns those instead. A document's only
        chunk cannot be left out: its effect is 0.
        Shapes: chunk_mask (D, C), scores (D,) -> (D, C).
        """
        masks = leave_one_out_masks(chunk_mask)  # (C, D, C)
        groups: Sequence[Tensor] = [masks]
        if not torch.compiler.is_compiling():  # a traced graph cannot loop over a number unknown at tracing
            groups = torch.split(masks, max(1, GROUP_CHUNKS // chunk_mask.numel()))
        without = torch.cat([self.score(state, some) for some in groups])  # (C, D)
        return effects(scores, without, chunk_mask)

    def forward(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Tensor:
        """Score documents without evidence; differentiable.

        Shapes: (D, C, …), (D, C), (D, …) -> (D,).
        Raises: ValueError if a document has no chunk.
        """
        check_chunks(chunk_mask)
        return self.score(self.interact(features, chunk_mask, query), chunk_mask[None])[0]

    def explain(self, features: Features, chunk_mask: Tensor, query: Features | None = None) -> Explanation:
        """Score documents and their chunks from one state; no gradient flows through chunk scores.

        Shapes: (D, C, …), (D, C), (D, …) -> (D,), (D, C).
        Raises: ValueError if a document has no chunk.
        """
        check_chunks(chunk_mask)
        state = self.interact(features, chunk_mask, query)
        scores = self.score(state, chunk_mask[None])[0]  # (D,)
        with torch.no_grad():
            chunk_scores = self.chunk_scores(state, chunk_mask, scores).detach()  # (D, C)
        return Explanation(scores, chunk_scores.masked_fill(~chunk_mask, -torch.inf))


class ChunkScoreAggregator(Aggregator[Tensor]):
    """Base of aggregators whose chunks have their own scores: `interact` returns them, (D, C).

    The document's score is that of the first chunk, or the mean, maximum or sum of all.
    """

    evidence = EvidenceKind.CHUNK_SCORE
    aggregation: Aggregation

    def score(self, state: Tensor, masks: Tensor) -> Tensor:
        """Shapes: state (D, C), masks (V, D, C) -> (V, D)."""
        return combine(state, masks, self.aggregation)

    def chunk_scores(self, state: Tensor, chunk_mask: Tensor, scores: Tensor) -> Tensor:
        """Shapes: state (D, C), chunk_mask (D, C), scores (D,) -> (D, C)."""
        if self.aggregation != "first":
            return state
        first = torch.arange(chunk_mask.shape[1], device=chunk_mask.device) == 0  # (C,)
        return state.masked_fill(~first, -torch.inf)


def combine(chunk_scores: Tensor, chunk_mask: Tensor, aggregation: Aggregation) -> Tensor:
    """Take the first chunk's score, or the mean, maximum or sum of all. Shapes: (…, C) each -> (…)."""
    if aggregation == "first":
        return chunk_scores.masked_fill(~chunk_mask, -torch.inf)[..., 0]
    if aggregation == "max":
        return chunk_scores.masked_fill(~chunk_mask, -torch.inf).amax(dim=-1)
    total = chunk_scores.masked_fill(~chunk_mask, 0.0).sum(dim=-1)  # (…)
    return total if aggregation == "sum" else total / chunk_mask.sum(dim=-1)


def leave_one_out_masks(chunk_mask: Tensor) -> Tensor:
    """Leave each chunk out in turn, except a document's only one. Shapes: (D, C) -> (C, D, C)."""
    alone = chunk_mask.sum(dim=1) == 1  # (D,)
    left_out = torch.eye(chunk_mask.shape[1], dtype=torch.bool, device=chunk_mask.device)  # (C, C)
    return chunk_mask & (~left_out[:, None] | alone[:, None])


def effects(scores: Tensor, without: Tensor, chunk_mask: Tensor) -> Tensor:
    """Compute how much documents' scores fall without each chunk. Shapes: (D,), (C, D), (D, C) -> (D, C)."""
    alone = chunk_mask.sum(dim=1) == 1  # (D,)
    return (scores - without).masked_fill(alone, 0.0).T


def check_chunks(chunk_mask: Tensor) -> None:
    """Refuse a document without a first chunk.

    Raises: ValueError naming the row.
    """
    if torch.compiler.is_compiling():  # a traced graph cannot inspect values
        return
    missing = (~chunk_mask[:, 0]).nonzero()
    if len(missing):
        raise ValueError(
            f"chunk_mask: document {int(missing[0])} has no chunk; every document has at least 1"
        )
