"""Reading in rounds: which chunks of which documents a ranker reads next, within a budget.

The first round reads a little of all documents, and each later one more of those that are best so far. After
every round there is a valid ranking: the documents of the round, by their scores, before all others, which
keep their order. Scores of documents that were read to different depths do not compare, unless a document's
score is the maximum over its chunks.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from farrank_rankers.depth.plan import MAX_CHUNKS, Round
from farrank_rankers.depth.selection import Ints

# The one round of a budget in chunks or tokens, which it shares out among all documents.
SHARED_OUT = (Round(1.0, MAX_CHUNKS),)

# Less than any cost: a budget that is a whole number may come out a little smaller.
_ROUNDING = 1e-6


class Step(NamedTuple):
    """A planned round: it orders the `documents` that were the best so far, before all others.

    `reads` has all chunks of a document that are read by now, ascending, if some are new. A document that was
    read to its end before has none.
    """

    documents: Sequence[int]
    reads: dict[int, Ints]


class Rounds:
    """Plans the rounds of D documents. Each document is read by one chunk at least, whatever the budget.

    `orders` has each document's chunks, most promising first; only these are read. `costs` has what each
    costs, at least 1, in the same order. The cost of all rounds is at most `budget`: it is shared out among
    all documents if the first round costs more, and a later round that costs more is not read.
    Shapes: D times (C,) each.
    """

    def __init__(
        self, orders: Sequence[Ints], costs: Sequence[Ints], rounds: Iterable[Round], budget: float = np.inf
    ) -> None:
        self._orders, self._costs = orders, costs
        self._lengths = np.array([len(order) for order in orders])  # (D,)
        self._read = np.zeros(len(orders), dtype=np.int64)
        self._schedule = list(rounds)
        self._budget, self.spent = budget, 0.0

    @property
    def is_last(self) -> bool:
        """Whether the round planned last is the last one."""
        return not self._schedule

    @property
    def left(self) -> float:
        """The most that the rounds to come can cost."""
        return max(0.0, min(self._budget - self.spent, sum(map(self._most, self._schedule))))

    def next(self, ranking: Sequence[int]) -> Step | None:
        """Plan the next round from all documents, best first; None if there is nothing left to read."""
        while self._schedule:
            planned = self._schedule.pop(0)
            chosen = np.asarray(ranking[: planned.documents(len(ranking))])
            more = np.minimum(self._lengths - self._read, planned.chunks)[chosen]  # (D,)
            if not self.spent and self._most(planned) > self._budget + _ROUNDING:
                more = self._share_out(chosen, more)
                self._schedule.clear()
            reads = {}
            for document, its in zip(chosen.tolist(), more.tolist(), strict=True):
                if its:
                    end = self._read[document] + its
                    self.spent += float(self._costs[document][self._read[document] : end].sum())
                    self._read[document] = end
                    reads[document] = np.sort(self._orders[document][:end])
            # A round that may cost more than what is left is not read.
            left = self._budget - self.spent + _ROUNDING
            if self._schedule and not 0 < self._most(self._schedule[0]) <= left:
                self._schedule.clear()
            if reads:
                return Step(chosen.tolist(), reads)
        return None

    def _most(self, planned: Round) -> float:
        """Bound the cost of a round that comes next; with a share of 1 it costs just this."""
        ends = np.minimum(self._lengths, self._read + planned.chunks)
        costs = [
            cost[begin:end].sum() for cost, begin, end in zip(self._costs, self._read, ends, strict=True)
        ]
        return float(np.sort(costs)[-planned.documents(len(costs)) :].sum())

    def _share_out(self, chosen: Ints, unread: Ints) -> Ints:
        """Give each document one more chunk in turn, the best first, as long as the budget lasts. (D,).

        Each gets one in any case.
        """
        cheapest = min(int(cost.min()) for cost in self._costs)
        # No document gets more turns: without this bound, a long one would be sorted as a whole.
        turns = 1
        while np.minimum(unread, turns).sum() * cheapest <= self._budget and turns < unread.max():
            turns *= 2
        some = np.minimum(unread, turns)
        place = np.repeat(np.arange(len(chosen)), some)
        turn = np.concatenate([np.arange(each) for each in some])
        costs = np.concatenate(
            [self._costs[document][:each] for document, each in zip(chosen, some, strict=True)]
        )
        order = np.lexsort((place, turn))
        count = int(np.searchsorted(np.cumsum(costs[order]), self._budget + _ROUNDING, side="right"))
        return np.bincount(place[order[: max(count, len(chosen))]], minlength=len(chosen))


def doubling(chunks: int, most: int) -> tuple[Round, ...]:
    """Give rounds of all documents that read `chunks` of each, then as many as all before, up to `most`."""
    rounds, read = [Round(1.0, chunks)], chunks
    while read < most:
        rounds.append(Round(1.0, min(read, MAX_CHUNKS)))
        read += rounds[-1].chunks
    return tuple(rounds)
