"""A call that reads in rounds: its documents are read whole and split, and then encoded a part at a time.

Tokenizer threads `add` each document and rank all chunks. Then they plan each round and make its inputs,
which wait in the ranker's queue like all others. Features of earlier rounds are used again.
"""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from farrank_indexes.stored_documents import Cut, Spans
from farrank_rankers.depth.rounds import SHARED_OUT, Rounds, doubling
from farrank_rankers.depth.selection import (
    Floats,
    Ints,
    TermCounts,
    best_first,
    bm25,
    count_terms,
    with_prior,
)
from farrank_rankers.features import Features
from farrank_rankers.reader import ChunkFramer
from farrank_rankers.tokens import Chunk, IntArray, TokenizedText
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, Ended, PendingDocument, QueuedInput
from farrank_server.engine.device.supervision import Device

# Sending the answer takes this share of a call's time, and at most this many seconds: reading ends so long
# before the deadline.
ANSWER_SHARE, ANSWER_S = 0.05, 0.1

# Terms are counted in this many chunks before other calls may have their turn, and as many inputs are made: a
# few milliseconds of a core.
CHUNKS_AT_ONCE = 256


def _reading_ends(call: ActiveCall) -> tuple[float, Ended]:
    """The time at which a call ends with the last round that was finished, if there is one, and why then."""
    its, budget_ms = call.call, call.depth.milliseconds
    ends = its.deadline_s - min(ANSWER_S, ANSWER_SHARE * (its.deadline_s - its.arrival_s)), Ended.DEADLINE
    return ends if budget_ms is None else min(ends, (its.arrival_s + budget_ms / 1000, Ended.BUDGET))


def _first_chunks(call: ActiveCall) -> int:
    """The chunks of each document that the first round reads, whatever they hold.

    That is none under a budget in tokens or time, which may end within a round.
    """
    depth, spec = call.depth, call.ranker.spec
    if depth.tokens is not None or depth.milliseconds is not None:
        return 0
    first = spec.depth_plan.rounds[0].chunks if depth.chunks is None else int(depth.chunks)
    most = spec.most_chunks(call.call.max_chunks)
    return first if most is None else min(first, most)


@dataclass(frozen=True, slots=True, eq=False)
class ReadDocument:
    """A document that was read whole: its tokens (T,), and its chunks' places among them (C, 2)."""

    index: int
    ids: IntArray
    places: IntArray
    spans: Spans
    cut: Cut

    def chunk(self, number: int) -> Chunk:
        """Make one of the chunks."""
        (first, end), (start, last) = self.places[number].tolist(), self.spans[number].tolist()
        return Chunk(number, self.ids[first:end], start, last)


class CallRounds:
    """The rounds of one ranker's part of a call. `ends_s` is when time ends it, and `ends_by` why then."""

    def __init__(self, call: ActiveCall, reservations: Reservations, device: Device) -> None:
        self.call = call
        self.ends_s, self.ends_by = _reading_ends(call)
        self._reservations, self._device = reservations, device
        self._chunks_read_anyway = _first_chunks(call)
        self._read: list[tuple[ReadDocument, TermCounts | None]] = []
        self._documents: Sequence[ReadDocument] = ()
        self._selection_ns: list[int] = []
        self._number = self._tokens = self._scored = 0
        # The last state of each document that may be read on, with its features.
        self._kept: dict[int, PendingDocument] = {}

    @property
    def is_last(self) -> bool:
        """Whether the round planned last is the last one."""
        return self._plan.is_last

    @property
    def selection_ns(self) -> int:
        """The processor time in which chunks were ordered."""
        return sum(self._selection_ns)

    def add(
        self, framer: ChunkFramer, index: int, read: TokenizedText, cut: Cut
    ) -> Generator[None, None, int]:
        """Add a document that was read, and return its number of chunks. Any thread may."""
        assert framer.query is not None, "only rankers of plan pair read in rounds"
        places, characters = framer.reader.places(read)
        document = ReadDocument(index, read.ids, places, characters.astype(np.uint32), cut)
        self._framer = framer
        terms = None
        if len(places) > self._chunks_read_anyway:
            terms = yield from self._count_terms(document)
        self._read.append((document, terms))
        yield
        return len(places)

    def _count_terms(self, document: ReadDocument) -> Generator[None, None, TermCounts]:
        query, ids = self._framer.query, document.ids
        assert query is not None, "see `add`"
        counted = []
        for start in range(0, len(document.places), CHUNKS_AT_ONCE):
            some = document.places[start : start + CHUNKS_AT_ONCE].tolist()
            began_ns = time.thread_time_ns()
            counted.append(count_terms(query.ids, [ids[first:end] for first, end in some]))
            self._selection_ns.append(time.thread_time_ns() - began_ns)
            yield
        return TermCounts(*map(np.concatenate, zip(*counted, strict=True)))

    def begin(self) -> Generator[None, None, None]:
        """Rank the chunks of all documents, plan the rounds, and submit the first one."""
        self._read.sort(key=lambda each: each[0].index)
        self._documents = [document for document, _ in self._read]
        if any(len(each.places) > self._chunks_read_anyway for each in self._documents):
            orders, best = yield from self._ranked()
        else:
            orders = [np.arange(len(each.places)) for each in self._documents]
            best = np.zeros(len(orders))
        self._read.clear()
        self._ranking: Sequence[int] = best_first(best).tolist()
        self._readable = [len(order) for order in orders]
        self._plan = self._planned(orders)
        yield
        yield from self.next()

    def _ranked(self) -> Generator[None, None, tuple[list[Ints], Floats]]:
        """Order the chunks of each document, best first, and give each document's best score."""
        terms, scores, orders = [], [], []
        for document, counted in self._read:
            terms.append(counted or (yield from self._count_terms(document)))
        competing = bm25(terms)
        for _ in terms:
            began_ns = time.thread_time_ns()
            scores.append(next(competing))
            self._selection_ns.append(time.thread_time_ns() - began_ns)
            yield
        spec = self.call.ranker.spec
        scores = with_prior(scores, spec.depth_plan.prior)
        most = spec.most_chunks(self.call.call.max_chunks)
        for each in scores:
            orders.append(best_first(each)[:most])
            yield
        return orders, np.array([each.max() for each in scores])

    def _planned(self, orders: Sequence[Ints]) -> Rounds:
        call, depth, spec = self.call, self.call.depth, self.call.ranker.spec
        first = self._documents[0].chunk(0)
        framing = self._framer.inputs([first])[0].tokens - len(first)
        # Budgets replace the plan's rounds: each of theirs reads all documents, so that scores compare.
        if depth.tokens is None and depth.milliseconds is None:
            costs = [np.ones(len(order), dtype=np.int64) for order in orders]
            rounds, budget = spec.depth_plan.rounds, np.inf
            if call.call.comparable_scores and not spec.scores_grow:
                rounds = tuple(each for each in rounds if each.share == 1)
            if depth.chunks is not None:
                rounds, budget = SHARED_OUT, depth.chunks * len(orders)
            self._unit, self._per_chunk = framing + spec.chunking.window, 1.0
            return Rounds(orders, costs, rounds, budget)
        costs = [
            framing + np.diff(each.places)[order, 0].astype(np.int64)
            for each, order in zip(self._documents, orders, strict=True)
        ]
        if depth.tokens is not None:
            rounds, budget = SHARED_OUT, float(depth.tokens)
        else:
            budget = self._encodable_tokens()
            rounds = doubling(spec.depth_plan.rounds[0].chunks, max(map(len, orders)))
        self._unit, self._per_chunk = 1, float(np.concatenate(costs).mean())
        return Rounds(orders, costs, rounds, budget)

    def next(self) -> Generator[None, None, bool]:
        """Plan the next round, and submit its inputs, some at a time. Returns whether there is one."""
        call = self.call
        if self._number:
            order = range(len(self._documents))  # of equal documents the earlier is first
            self._ranking = sorted(order, key=lambda index: call.results[index].rank)
        step = self._plan.next(self._ranking)
        if step is None:
            return False
        self._number += 1
        for index in step.documents:
            if index not in step.reads:  # read to its end: it is ordered among those that are read on
                call.results[index] = replace(call.results[index], round=self._number)
        before = {index: its for index, its in self._kept.items() if index in step.reads}
        kept_bytes = sum(each.kept_bytes for each in before.values())
        self._device.begin_round(call, list(step.reads), kept_bytes, self.is_last)
        self._kept = {}
        inputs: list[QueuedInput] = []
        for index, numbers in step.reads.items():
            document, missing = self._pending(self._documents[index], numbers.tolist(), before.get(index))
            if document.is_kept:
                self._kept[index] = document
            self._scored += len(document.spans)
            for start in range(0, len(missing), CHUNKS_AT_ONCE):
                inputs += self._inputs(document, missing[start : start + CHUNKS_AT_ONCE])
                if len(inputs) >= CHUNKS_AT_ONCE:
                    self._submit(inputs)
                    inputs = []
                    yield
                    if not call.is_wanted:  # its error is found by `round_ended`
                        return True
        self._submit(inputs)
        left, most_left = self._plan.left, self._encodable_tokens()
        tokens = self._tokens + min(left * self._unit, most_left)
        chunks = self._scored + min(left, most_left / self._unit) / self._per_chunk
        self._reservations.correct(call.reservation, call.ranker.key, round(tokens), round(chunks))
        return True

    def _encodable_tokens(self) -> float:
        """The most tokens that the device can encode until time ends the call."""
        return max(0.0, self.ends_s - time.monotonic()) * self.call.ranker.tokens_per_s()

    def _pending(
        self, document: ReadDocument, numbers: Sequence[int], before: PendingDocument | None
    ) -> tuple[PendingDocument, list[int]]:
        """Make a document's next state, and list the places of the chunks whose features were not kept."""
        known: dict[int, Features | None] = {}
        if before is not None and before.numbers is not None:
            known.update(zip(before.numbers, before.features, strict=True))
        features = [known.get(number) for number in numbers]
        missing = [place for place, each in enumerate(features) if each is None]
        pending = PendingDocument(
            self.call,
            document.index,
            document.spans[numbers],
            document.cut,
            features,
            len(missing),
            tokens=0,
            kept_bytes=0 if before is None else before.kept_bytes,
            numbers=numbers,
            chunks_scored=len(document.spans),
            round=self._number,
            is_kept=not self.is_last and len(numbers) < self._readable[document.index],
        )
        return pending, missing

    def _inputs(self, document: PendingDocument, places: Sequence[int]) -> list[QueuedInput]:
        """Make the inputs of some of a document's chunks."""
        assert document.numbers is not None, "it is read in rounds"
        read = self._documents[document.index]
        framed = self._framer.inputs([read.chunk(document.numbers[place]) for place in places])
        return [
            QueuedInput(each.tokens, self.call, each, document, place)
            for place, each in zip(places, framed, strict=True)
        ]

    def _submit(self, inputs: Sequence[QueuedInput]) -> None:
        tokens = sum(each.tokens for each in inputs)
        self.call.tally.tokens += tokens
        self._tokens += tokens
        self._device.submit(self.call, inputs, ())
