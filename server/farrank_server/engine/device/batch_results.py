"""Processes the results of a batch: takes features in, scores complete documents, isolates failures."""

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

import numpy as np

from farrank_calls.errors import FailedPrecondition, FarrankError, Internal, Reason, ResourceExhausted
from farrank_calls.telemetry.call_record import Facts, TracedBatch
from farrank_indexes.stored_documents import EncodedDocument
from farrank_rankers.aggregate import SCORE_DECIMALS
from farrank_rankers.features import Features
from farrank_runtimes.document_groups import gathered, kept
from farrank_runtimes.maxsim import best_rows
from farrank_runtimes.runtime import DeviceLost, OutOfMemory, forget_locals
from farrank_server.engine.admission.reservations import Reservation, Reservations
from farrank_server.engine.call import ActiveCall, PendingDocument, QueuedInput
from farrank_server.engine.device.batch_in_flight import BatchInFlight
from farrank_server.engine.device.watchdog import Watchdog
from farrank_server.engine.device.work_queue import RankerQueue, WorkQueue
from farrank_server.engine.loaded.ranker import LoadedRanker
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

# Within this time the event loop has sent an answer, and a client that calls again at once has done so.
ANSWER_SENT_S = 0.003

# A batch counts as full from this share of the budget on.
FULL = 0.5

# After this many failed calls in a row the probe runs, an input known to be good. If the probe fails too, the
# device is at fault and not the callers' input.
FAILURES_BEFORE_PROBE = 3

T = TypeVar("T")


class ChunksMissing(Exception):
    """A document was about to be scored without the features of all its chunks. This is a bug."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of finished work: a batch, or the scoring of documents. Holds no texts and no features.

    `parts` holds the number of tokens of each input with the reservation of its call.
    """

    queue: RankerQueue
    busy_s: float
    parts: Sequence[tuple[Reservation, int]] = ()
    chunks: int = 0
    padded: int = 0
    seconds: float = 0.0


class BatchResults:
    """Takes in the results of batches and scores the documents that they complete, on the device thread.

    `has_succeeded` says whether any work succeeded since it was last set to False. `uncounted` holds the
    figures of finished work until `count`; while the device is idle they wait until the answers are sent.
    """

    def __init__(
        self, work: WorkQueue, reservations: Reservations, metrics: Metrics, watchdog: Watchdog
    ) -> None:
        self._work = work
        self._reservations = reservations
        self._metrics = metrics
        self._watchdog = watchdog
        self._failed_in_a_row = 0
        self.has_succeeded = False
        self.uncounted: list[Figures] = []

    def finish(self, batch: BatchInFlight, *, overlapped: bool) -> None:
        """Wait for a batch, keep its features, and score the documents that it completes.

        A failing input is isolated: its call gets an error, and the other inputs of the batch get their
        scores. `overlapped` says that another batch is in flight, whose time on the device covers the work
        done here.
        Raises: DeviceLost.
        """
        ready: list[PendingDocument] = []
        encoded: list[BatchInFlight] = []

        def take_in(items: Sequence[QueuedInput]) -> None:
            attempt = batch
            # The first attempt is the batch already begun. Later ones leave out calls that have ended since.
            if items is not batch.items:
                items = [item for item in items if self._work.is_open(item.call)]
                if not items:
                    return
                attempt = BatchInFlight(batch.queue, items, self._watchdog)
            ready.extend(self._take_in(attempt))
            encoded.append(attempt)

        run_isolated(take_in, batch.items, lambda items, error: self._encoding_failed(batch, items, error))
        busy_s = self._score(batch.queue.ranker, ready, overlapped=overlapped)
        if batch.is_queued:
            busy_s += sum(attempt.seconds for attempt in encoded)
        else:
            busy_s = time.monotonic() - batch.began_s
        self.uncounted.append(Figures(batch.queue, busy_s))
        self.uncounted += map(_figures, encoded)
        self._let_loop_answer(ready, overlapped=overlapped)

    def score(self, queue: RankerQueue, ready: Sequence[PendingDocument], *, overlapped: bool) -> None:
        """Score documents that need no encoding. `overlapped` and Raises: as `finish`."""
        self.uncounted.append(Figures(queue, self._score(queue.ranker, ready, overlapped=overlapped)))
        self._let_loop_answer(ready, overlapped=overlapped)

    def _take_in(self, batch: BatchInFlight) -> list[PendingDocument]:
        """Store each input's features in its document. Returns the documents that can be scored now.

        If this fails, no call and no document has changed, so that the inputs can run again.
        """
        arrived = self._arrived(batch)
        self._succeeded()
        # Subtract the batch's time from its end, because a batch may have waited behind another.
        started_s = (batch.done_s or batch.began_s) - batch.seconds
        for call in {item.call for item in batch.items}:
            call.tally.inference_ns += round(batch.seconds * 1e9)
        for item, positions in zip(batch.items, batch.positions, strict=True):
            tally = item.call.tally
            tally.pairs += 1
            tally.padded_tokens += positions
            tally.queue_ns = max(tally.queue_ns, round((started_s - item.enqueued_s) * 1e9))
        _note_batch(batch, started_s)
        ready: list[PendingDocument] = []
        for item, row, kept_bytes in arrived:
            call, document = item.call, item.document
            if document is None and call.is_query_alone:
                call.query_features = row
                call.settle()
                self._work.forget(call)
            elif document is None:
                ready += call.query_arrived(row)
            else:
                document.features[item.chunk] = row
                document.missing -= 1
                document.kept_bytes += kept_bytes
                self._work.count_kept(call, kept_bytes)
                if document.missing == 0:
                    if not document.is_kept:
                        self._work.count_kept(call, -document.kept_bytes)
                    ready += call.ready_with(document)
        return ready

    def _arrived(self, batch: BatchInFlight) -> list[tuple[QueuedInput, Features, int]]:
        """Return the features of the inputs still wanted, with the device memory that each keeps.

        Features that wait for the rest of their document, or for its next round, are copied: on the device
        while there is room, else to the host.
        Raises: the error raised on the device; OutOfMemory, DeviceLost.
        """
        arrived: list[tuple[QueuedInput, Features, int]] = []
        rows = zip(batch.items, batch.rows(), strict=True)
        wanted = [(item, row) for item, row in rows if self._work.is_open(item.call)]
        arriving = Counter(item.document for item, _ in wanted)
        kept_bytes = self._work.kept_bytes
        for item, row in wanted:
            document, most = item.document, item.call.ranker.capabilities.max_kept_bytes
            nbytes = 0
            if document is None and item.call.is_query_alone:
                with self._watchdog.step():
                    row = kept(row, on_host=True)
            elif document is not None and (document.is_kept or arriving[document] < document.missing):
                fits = most is None or kept_bytes + row.nbytes <= most
                nbytes = row.nbytes if most is not None and fits else 0
                kept_bytes += nbytes
                with self._watchdog.step():
                    # A row of a batch is a view that would keep the whole batch in memory.
                    row = kept(row, on_host=not fits)
            arrived.append((item, row, nbytes))
        return arrived

    def _score(self, ranker: LoadedRanker, ready: Sequence[PendingDocument], *, overlapped: bool) -> float:
        """Score documents. Returns the seconds in which this alone kept the device busy."""
        started_s = time.monotonic()
        scored = 0

        def score(documents: Sequence[PendingDocument]) -> None:
            nonlocal scored
            documents = [each for each in documents if self._work.is_open(each.call)]
            if documents:
                self._score_together(ranker, documents)
                scored += sum(len(each.spans) for each in documents)

        def failed(documents: Sequence[PendingDocument], error: Exception) -> None:
            self._failed(ranker, [each.call for each in documents], error)

        if ready:
            run_isolated(score, ready, failed)
        scoring_s = time.monotonic() - started_s
        if overlapped:
            return 0.0
        ranker.speeds.scoring.observe(scored, scoring_s)
        return scoring_s

    def _let_loop_answer(self, scored: Sequence[PendingDocument], *, overlapped: bool) -> None:
        """Let the event loop send answers before the work is counted: callers wait only for scores.

        If the device has no other work, the figures stay uncounted until the answers are sent.
        """
        if overlapped or self._work.has_work:
            if scored:
                time.sleep(0.0)
            self.count()

    def _score_together(self, ranker: LoadedRanker, ready: Sequence[PendingDocument]) -> None:
        """Score documents of any number of calls at once, and settle the calls that are then complete.

        Raises: OutOfMemory, DeviceLost.
        """
        started_ns = time.perf_counter_ns()
        chunks = sum(len(document.spans) for document in ready)
        with self._watchdog.step(chunks / ranker.speeds.scoring.per_s):
            features = [_features(document) for document in ready]
            queries = [_query(document.call) for document in ready] if ranker.is_dual else None
            found = ranker.runtime.score(features, queries)
            # Copying for the cache can fail, too. The documents are then scored again, so none may be counted
            # before.
            is_new = [ranker.cache is not None and document.whole is None for document in ready]
            on_host = [its.to("cpu") if new else None for its, new in zip(features, is_new, strict=True)]
            if ranker.spec.maxsim is not None:
                for document, its, own in zip(ready, features, found.chunk_scores, strict=True):
                    if (call := document.call).call.token_matches:
                        matched = best_rows(its, _query(call), ranker.spec.maxsim, own)
                        if matched is not None:
                            call.best_rows[document.index] = matched
        self._succeeded()
        if found.halved_groups:
            self._metrics.batch_failures.labels(ranker.name, "out_of_memory").inc(found.halved_groups)
        elapsed_ns = time.perf_counter_ns() - started_ns
        ended_s = time.monotonic()
        for call in {document.call for document in ready}:
            call.tally.aggregation_ns += elapsed_ns
            call.call.record.step(
                "aggregate", ended_s - elapsed_ns / 1e9, ended_s, ranker=ranker.name, chunks=chunks
            )
        evidence = _rounded(found.chunk_scores)
        scored = zip(ready, found.scores, evidence, on_host, strict=True)
        for document, score, chunk_scores, encoded in scored:
            call = document.call
            self._reservations.done(call.reservation, ranker.key, chunks=len(document.spans))
            if not all(map(math.isfinite, (score, *chunk_scores))):
                self._fail_not_finite(document, score)
                continue
            if encoded is not None and ranker.cache is not None and call.known.keys is not None:
                to_keep = EncodedDocument(encoded, document.spans, document.cut, document.tokens)
                ranker.cache.put(call.known.keys[document.index], to_keep)
            if document.is_kept:
                self._work.keep_for_rounds(document)
            if call.score(document, score, chunk_scores):
                if call.reads_on:
                    call.end_round()
                else:
                    call.settle()
                    self._work.forget(call)

    def _fail_not_finite(self, document: PendingDocument, score: float) -> None:
        # NaN has no order: the other documents could not be ranked either.
        name = document.call.ranker.name
        log.error(
            "ranker %s gave a document of %d chunks the score %s",
            *(name, len(document.spans), score),
            extra={"call": document.call.call.record},
        )
        self._metrics.batch_failures.labels(name, "not_finite").inc()
        error = FailedPrecondition(
            f"ranker {name}: documents[{document.index}] has no finite score; leave it out, or ask another "
            "ranker or precision",
            reason=Reason.NOT_FINITE,
        )
        self._give_up(document.call, error)

    def count(self) -> None:
        """Count all work finished since the last call."""
        for done in self.uncounted:
            ranker, budget = done.queue.ranker, done.queue.batcher.budget
            self._metrics.device_busy_seconds.labels(ranker.capabilities.device).inc(done.busy_s)
            if not done.parts:
                continue
            budget.fitted()
            real = sum(tokens for _, tokens in done.parts)
            # The time of a batch that is not full depends more on the fixed cost of a batch than on the
            # speed.
            if done.padded >= budget.tokens * FULL:
                ranker.speeds.encoding.observe(real, done.seconds)
            for reservation, tokens in done.parts:
                self._reservations.done(reservation, ranker.key, tokens=tokens)
            self._metrics.count_batch(
                ranker.name, len(done.parts), done.chunks, real, done.padded, done.seconds
            )
        self.uncounted.clear()

    def _encoding_failed(self, batch: BatchInFlight, items: Sequence[QueuedInput], error: Exception) -> None:
        ranker, budget = batch.queue.ranker, batch.queue.batcher.budget
        # Once per batch: its halves give no new information about the size that fits.
        if isinstance(error, OutOfMemory) and items is batch.items and len(items) > 1:
            padded = sum(batch.positions)
            budget.failed(padded)
            message = "ranker %s: a batch of %d tokens ran out of memory; at most %d for a while"
            log.warning(message, ranker.name, padded, budget.tokens)
        self._failed(ranker, [item.call for item in items], error)

    def _failed(self, ranker: LoadedRanker, calls: Sequence[ActiveCall], error: Exception) -> None:
        out_of_memory = isinstance(error, OutOfMemory)
        self._metrics.batch_failures.labels(ranker.name, "out_of_memory" if out_of_memory else "error").inc()
        if len(calls) > 1:
            return
        if out_of_memory:
            message = f"ranker {ranker.name}: one chunk alone does not fit into the device's memory now"
            answer: FarrankError = ResourceExhausted(
                message, reason=Reason.OUT_OF_MEMORY, retry_after_ms=1000
            )
        else:
            record = calls[0].call.record
            log.error("ranker %s failed on one input", ranker.name, exc_info=error, extra={"call": record})
            answer = Internal(f"ranker {ranker.name} failed on this request; the server's log says why")
        self._give_up(calls[0], answer)
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= FAILURES_BEFORE_PROBE:
            self._probe(ranker)

    def _give_up(self, call: ActiveCall, error: FarrankError) -> None:
        """Answer a call with an error, and run no more of its inputs."""
        call.settle(error)
        self._work.forget(call)

    def _succeeded(self) -> None:
        self._failed_in_a_row = 0
        self.has_succeeded = True

    def _probe(self, ranker: LoadedRanker) -> None:
        """Find out whether the device or the callers' input is at fault. Raises: DeviceLost."""
        try:
            with self._watchdog.step():
                ranker.runtime.encode([ranker.probe]).rows()
        except DeviceLost:
            raise
        except Exception as error:
            raise DeviceLost(f"it fails on every input: {error}") from error
        self._failed_in_a_row = 0


def _rounded(chunk_scores: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Round the evidence of all documents at once, because most have few chunks."""
    flat = np.fromiter(chain.from_iterable(chunk_scores), dtype=np.float64)
    rounded = iter(np.round(flat, SCORE_DECIMALS).tolist())
    return [tuple(islice(rounded, len(each))) for each in chunk_scores]


def _figures(done: BatchInFlight) -> Figures:
    return Figures(
        done.queue,
        busy_s=0.0,
        parts=[(item.call.reservation, item.tokens) for item in done.items],
        chunks=sum(item.document is not None for item in done.items),
        padded=sum(done.positions),
        seconds=done.seconds,
    )


def run_isolated(
    run: Callable[[Sequence[T]], None],
    parts: Sequence[T],
    on_failure: Callable[[Sequence[T], Exception], None],
) -> None:
    """Run the parts together. If that fails, run each half, down to single parts.

    So a failing part does not harm the others. `on_failure` is called for every failed attempt; a part that
    fails alone is not run again.
    Raises: DeviceLost, at once: no smaller batch would help.
    """
    try:
        run(parts)
    except DeviceLost:
        raise
    except Exception as error:
        on_failure(parts, forget_locals(error))
        if len(parts) > 1:
            middle = len(parts) // 2
            run_isolated(run, parts[:middle], on_failure)
            run_isolated(run, parts[middle:], on_failure)


def _features(document: PendingDocument) -> Features:
    """Gather all features of a document, (C, …).

    Raises: ChunksMissing if their number differs from the document's number of chunks; OutOfMemory,
    DeviceLost.
    """
    chunks = [chunk for chunk in document.features if chunk is not None]
    arrived = len(chunks) if document.whole is None else document.whole.chunks
    if arrived != len(document.spans):
        raise ChunksMissing(f"documents[{document.index}]: {arrived} of {len(document.spans)} chunks arrived")
    return gathered(chunks) if document.whole is None else document.whole


def _query(call: ActiveCall) -> Features:
    if call.query_features is None:
        raise AssertionError("a dual document was scored before its query was encoded")
    return call.query_features


def _note_batch(batch: BatchInFlight, start_s: float) -> None:
    """Record, for traced calls, how long their inputs waited for a batch and how long the batch took.

    `start_s` is the time at which the device began it.
    """
    traced = defaultdict[ActiveCall, list[QueuedInput]](list)
    for item in batch.items:
        if item.call.call.record.trace is not None:
            traced[item.call].append(item)
    if not traced:
        return
    ranker, end_s = batch.queue.ranker, batch.done_s or start_s
    ran = {"ranker": ranker.name, "runtime": ranker.capabilities.runtime}
    whole: Facts = {
        **ran,
        "device": ranker.capabilities.device,
        "precision": ranker.capabilities.precision,
        "inputs": len(batch.items),
        "calls": len({item.call for item in batch.items}),
        "tokens": sum(item.tokens for item in batch.items),
        "padded_tokens": sum(batch.positions),
    }
    traces = [trace for call in traced if (trace := call.call.record.trace) is not None]
    traced_batch = TracedBatch(start_s, end_s, whole, traces)
    for trace, items in zip(traces, traced.values(), strict=True):
        trace.step("queue", min(start_s, *(item.enqueued_s for item in items)), start_s, ran)
        its: Facts = {**ran, "inputs": len(items), "tokens": sum(item.tokens for item in items)}
        trace.step("device", start_s, end_s, its, traced_batch)
