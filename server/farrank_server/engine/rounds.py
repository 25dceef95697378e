"""A call that reads in rounds: its documents are read whole and split, and then encoded a part at a time.

Tokenizer threads `add` each document, and one of them ranks all chunks. From then on the rounds belong to the
device thread: when the last document of a round has its score, it asks for the `next` one. A round's inputs
wait in the ranker's queue like all others. Features of earlier rounds are used again.
"""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from farrank_indexes.stored_documents import Cut, Spans
from farrank_rankers.depth.rounds import SHARED_OUT, Rounds, doubling
from farrank_rankers.depth.selection import TermCounts, best_first, bm25, count_terms, with_prior
from farrank_rankers.features import Features
from farrank_rankers.reader import ChunkFramer
from farrank_rankers.tokens import Chunk
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, PendingDocument, QueuedInput

# Sending the answer takes this share of a call's time, and at most this many seconds: reading ends so long
# before the deadline.
ANSWER_SHARE, ANSWER_S = 0.05, 0.1


def reading_ends_s(call: ActiveCall) -> float:
    """The time at which a call ends with the last round that was finished, if there is one."""
    its, depth = call.call, call.depth
    answer_s = min(ANSWER_S, ANSWER_SHARE * (its.deadline_s - its.arrival_s))
    budget_s = np.inf if depth.milliseconds is None else depth.milliseconds / 1000
    return min(its.deadline_s - answer_s, its.arrival_s + float(budget_s))


@dataclass(frozen=True, slots=True, eq=False)
class ReadDocument:
    """A document that was read whole, and how often the query's tokens stand in its chunks."""

    index: int
    chunks: Sequence[Chunk]
    spans: Spans
    cut: Cut
    terms: TermCounts
    selection_ns: int


class CallRounds:
    """The rounds of one ranker's part of a call."""

    def __init__(self, call: ActiveCall, reservations: Reservations) -> None:
        self.call = call
        self._reservations = reservations
        self._documents: list[ReadDocument] = []
        self._number = self._tokens = self._scored = 0
        # The last state of each document that may be read on, with its features.
        self._kept: dict[int, PendingDocument] = {}

    def add(self, framer: ChunkFramer, index: int, chunks: Sequence[Chunk], cut: Cut) -> None:
        """Add a document that was read. Any thread may."""
        assert framer.query is not None, "only rankers of plan pair read in rounds"
        began_ns = time.thread_time_ns()
        terms = count_terms(framer.query.ids, [chunk.ids for chunk in chunks])
        selection_ns = time.thread_time_ns() - began_ns
        spans = np.array([(chunk.start, chunk.end) for chunk in chunks], dtype=np.uint32)
        self._documents.append(ReadDocument(index, chunks, spans, cut, terms, selection_ns))
        self._framer = framer

    def rank(self) -> Generator[None, None, None]:
        """Rank the chunks of all documents, and plan the rounds."""
        call, depth, documents = self.call, self.call.depth, self._documents
        plan = call.ranker.spec.depth
        documents.sort(key=lambda each: each.index)
        began_ns = time.thread_time_ns()
        scores = with_prior(bm25([each.terms for each in documents]), plan.prior)
        self.selection_ns = time.thread_time_ns() - began_ns + sum(each.selection_ns for each in documents)
        yield
        first = documents[0].chunks[0]
        framing = self._framer.inputs([first])[0].tokens - len(first)
        most = call.ranker.spec.most_chunks(call.call.max_chunks)
        orders = [best_first(each)[:most] for each in scores]
        # Budgets replace the plan's rounds: each of theirs reads all documents, so that scores compare.
        if depth.tokens is None and depth.milliseconds is None:
            costs = [np.ones(len(order), dtype=np.int64) for order in orders]
            rounds, budget = plan.rounds, float("inf")
            if call.call.comparable_scores:
                rounds = tuple(each for each in rounds if each.share == 1)
            if depth.chunks is not None:
                rounds, budget = SHARED_OUT, depth.chunks * len(documents)
            self._unit, self._per_chunk = framing + call.ranker.spec.chunking.window, 1.0
        else:
            costs = [
                framing + each.terms.lengths[order].astype(np.int64)
                for each, order in zip(documents, orders, strict=True)
            ]
            if depth.tokens is not None:
                rounds, budget = SHARED_OUT, float(depth.tokens)
            else:
                time_s = max(0.0, reading_ends_s(call) - time.monotonic())
                budget = time_s * call.ranker.tokens_per_s()
                rounds = doubling(plan.rounds[0].chunks, max(map(len, orders)))
            self._unit, self._per_chunk = 1, float(np.concatenate(costs).mean())
        self._plan = Rounds(orders, costs, rounds, budget)
        self._readable = [len(order) for order in orders]
        best = np.array([each.max() for each in scores])
        self._ranking: Sequence[int] = best_first(best).tolist()

    def next(self) -> tuple[list[QueuedInput], list[PendingDocument]]:
        """End a round and begin the next: its inputs and documents, none if there is no other.

        The call's `ranking` is then that of the round that has ended.
        """
        call = self.call
        if self._number:
            call.ranking = ranked = tuple(call.results[each.index] for each in self._documents)
            self._ranking = sorted(range(len(ranked)), key=lambda index: ranked[index].rank)
        step = self._plan.next(self._ranking)
        if step is not None and self._number and time.monotonic() >= reading_ends_s(call):
            step, call.ended_early = None, True
        if step is None:
            return [], []
        self._number += 1
        for index in step.documents:
            if index not in step.reads:  # read to its end: it is ordered among those that are read on
                call.results[index] = replace(call.results[index], round=self._number)
        inputs: list[QueuedInput] = []
        pending: list[PendingDocument] = []
        for index, numbers in step.reads.items():
            document, its_inputs = self._read_on(self._documents[index], numbers.tolist())
            pending.append(document)
            inputs += its_inputs
        self._kept = {each.index: each for each in pending if each.is_kept}
        tokens = sum(each.tokens for each in inputs)
        call.tally.tokens += tokens
        self._tokens += tokens
        self._scored += sum(len(each.spans) for each in pending)
        left = self._plan.left
        most = round(self._tokens + left * self._unit), round(self._scored + left / self._per_chunk)
        self._reservations.correct(call.reservation, call.ranker.name, *most)
        return inputs, pending

    def _read_on(
        self, document: ReadDocument, numbers: Sequence[int]
    ) -> tuple[PendingDocument, list[QueuedInput]]:
        """Make the inputs of those chunks of a document whose features were not kept."""
        before = self._kept.get(document.index)
        known: dict[int, Features | None] = {}
        if before is not None and before.numbers is not None:
            known.update(zip(before.numbers, before.features, strict=True))
        features = [known.get(number) for number in numbers]
        missing = [place for place, each in enumerate(features) if each is None]
        framed = self._framer.inputs([document.chunks[numbers[place]] for place in missing])
        pending = PendingDocument(
            self.call,
            document.index,
            document.spans[numbers],
            document.cut,
            features,
            len(missing),
            tokens=sum(each.tokens for each in framed),
            kept_bytes=0 if before is None else before.kept_bytes,
            numbers=numbers,
            chunks_scored=len(document.chunks),
            round=self._number,
            is_kept=not self._plan.is_last and len(numbers) < self._readable[document.index],
        )
        return pending, [
            QueuedInput(each.tokens, self.call, each, pending, place)
            for place, each in zip(missing, framed, strict=True)
        ]
