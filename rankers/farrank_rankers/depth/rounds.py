"""Reading in rounds: which chunks of which documents a ranker reads next, within a budget.

The first round reads a little of all documents, and each later one more of those that are best so far. After
every round there is a valid ranking: the documents of the round, by their scores, before all others, which
keep their order. Scores of documents that were read to different depths do not compare.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from farrank_rankers.chunking import chunk_count
from farrank_rankers.depth.selection import Ints
from farrank_rankers.family import family_named
from farrank_rankers.spec import RankerSpec


class Round(NamedTuple):
    """A round reads `chunks` more chunks of each of the best documents, `share` of all."""

    share: float
    chunks: int


# For a ranker of windows of 150 tokens these 3.8 chunks of a document cost about as much as its first 512
# tokens, the price at which rankers usually read. The parts are a first choice, not yet calibrated.
SCHEDULE = (Round(1.0, 2), Round(0.5, 2), Round(0.2, 4))
MEAN_CHUNKS = sum(each.share * each.chunks for each in SCHEDULE)

# Less than any cost: a part of the budget that is a whole number may come out a little smaller.
_ROUNDING = 1e-6


class Step(NamedTuple):
    """A planned round, for which `chosen` documents were the best so far.

    It orders `documents`, the first of these; the others are beyond its part of the budget, and may come in
    a later round. `reads` has all chunks of a document that are read by now, ascending, if some are new. A
    document that was read to its end before has none.
    """

    chosen: Sequence[int]
    documents: Sequence[int]
    reads: dict[int, Ints]


class Rounds:
    """Plans the rounds of D documents. Each document is read by one chunk at least, whatever the budget.

    `orders` has each document's chunks, most promising first; only these are read. `costs` has what each
    costs, at least 1, in the same order. The cost of all rounds is at most `budget`, which each round gets a
    part of, as in the schedule, and what the rounds before left. A budget for everything is spent in one
    round, and so is any budget if scores must be `comparable`. Shapes: D times (C,) each.
    """

    def __init__(
        self, orders: Sequence[Ints], costs: Sequence[Ints], budget: float, comparable: bool = False
    ) -> None:
        self._orders, self._costs = orders, costs
        self._read = np.zeros(len(orders), dtype=np.int64)
        self._allowed, self.spent = 0.0, 0.0
        everything = float(sum(cost.sum() for cost in costs))
        fits = comparable or budget >= everything
        self._budget = min(budget, everything)
        self._schedule = [Round(1.0, 1)] if fits else list(SCHEDULE)
        self._mean = 1.0 if fits else MEAN_CHUNKS

    @property
    def is_last(self) -> bool:
        """Whether the round planned last is the last one."""
        return not self._schedule

    @property
    def left(self) -> float:
        """The most that the rounds to come can cost."""
        return 0.0 if self.is_last else max(0.0, self._budget - self.spent)

    def next(self, ranking: Sequence[int]) -> Step | None:
        """Plan the next round from all documents, best first; None if there is nothing left to read."""
        while self._schedule:
            share, chunks = self._schedule.pop(0)
            self._allowed += self._budget * share * chunks / self._mean
            if self.is_last:
                self._allowed = self._budget
            chosen = np.asarray(ranking[: max(1, int(np.ceil(share * len(ranking))))])
            unread = np.array([len(self._orders[each]) for each in chosen]) - self._read[chosen]  # (D,)
            is_first = not self.spent
            taken = self._share_out(chosen, unread, self._allowed - self.spent + _ROUNDING, is_first)
            # Several can be read on, and the budget was not enough for all of them: the others wait.
            waiting = np.flatnonzero((unread > 0) & (taken == 0))
            documents = chosen[: waiting[0] if len(waiting) else len(chosen)].tolist()
            reads = {}
            for document, more in zip(documents, taken, strict=False):
                if more:
                    new = slice(self._read[document], self._read[document] + more)
                    self.spent += float(self._costs[document][new].sum())
                    self._read[document] += more
                    reads[document] = np.sort(self._orders[document][: self._read[document]])
            if reads:
                return Step(chosen.tolist(), documents, reads)
        return None

    def _share_out(self, chosen: Ints, unread: Ints, available: float, is_first: bool) -> Ints:
        """Give each document one more chunk in turn, the best first, as long as the budget lasts. (D,)."""
        cheapest = min(int(cost.min()) for cost in self._costs)
        # No document gets more turns: without this bound, a long one would be sorted as a whole.
        turns = 1
        while np.minimum(unread, turns).sum() * cheapest <= available and turns < unread.max():
            turns *= 2
        some = np.minimum(unread, turns)
        place = np.repeat(np.arange(len(chosen)), some)
        turn = np.concatenate([np.arange(each) for each in some])
        costs = np.concatenate(
            [
                self._costs[document][self._read[document] : self._read[document] + each]
                for document, each in zip(chosen, some, strict=True)
            ]
        )
        order = np.lexsort((place, turn))
        count = int(np.searchsorted(np.cumsum(costs[order]), available, side="right"))
        if is_first:
            count = max(count, int((some > 0).sum()))
        return np.bincount(place[order[:count]], minlength=len(chosen))


def most_chunks(spec: RankerSpec, max_chunks: int | None) -> int | None:
    """Bound the chunks of one document that a ranker scores together; None if nothing does.

    A transformer over chunks has positions only for as many as the ranker reads without adaptive depth.
    """
    if not family_named(spec.family).places_chunks:
        return max_chunks
    placed = chunk_count(spec.chunking, spec.chunking.max_document_tokens)
    return placed if max_chunks is None else min(placed, max_chunks)


def why_not_adaptive(spec: RankerSpec, *others: RankerSpec) -> str | None:
    """Explain why a ranker cannot read in rounds; None if it can: it scores any set of a document's chunks.

    Several specs are those of an ensemble's members.
    """
    if others:
        return "an ensemble has the mean of its members' scores, and those of different rounds do not compare"
    if spec.chunking.kind == "first" or getattr(spec.options, "aggregation", None) == "first":
        return f"family {spec.family} scores a document by its first chunk"
    if spec.chunking.max_document_tokens < spec.chunking.window:
        return "its max_document_tokens is less than its window"
    if spec.plan == "dual":
        return f"family {spec.family} encodes chunks without the query, and reads all of them"
    return None
