"""What becomes of a batch: features are taken in, complete documents are scored, failures are isolated."""

import logging
import threading
import time
from collections.abc import Sequence

from farrank_rankers.features import Features
from farrank_runtimes.document_groups import gathered
from farrank_runtimes.runtime import OutOfMemory
from farrank_server.batching.batcher import Waiting
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, Part, PendingDocument
from farrank_server.engine.device.batch_in_flight import BatchInFlight, Items, begin
from farrank_server.engine.device.bisection import run_isolated
from farrank_server.engine.rankers.document_cache import EncodedDocument
from farrank_server.engine.rankers.loaded import LoadedRanker, Ready
from farrank_server.errors import FarrankError, Internal, Reason, ResourceExhausted
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

# The share of the budget from which on a batch counts as full.
FULL = 0.5


def store_features(items: Sequence[Waiting[Part]], rows: Sequence[Features]) -> list[Ready]:
    """Put each input's features in its place; return the documents that can be scored now.

    A row is an item's, (F,) or (S, F…). Guarded by the worker's lock.
    """
    ready: list[Ready] = []
    for item, row in zip(items, rows, strict=True):
        job, document = item.payload.job, item.payload.document
        if document is None:
            ready.extend((job, waited) for waited in job.query_arrived(row))
            continue
        document.features[item.payload.chunk] = row
        document.missing -= 1
        if document.missing == 0:
            ready.extend((job, whole) for whole in job.ready_with(document))
    return ready


def score_documents(lane: LoadedRanker, ready: Sequence[Ready]) -> int:
    """Score documents of any number of jobs at once; resolve the jobs that this finished.

    Returns how many groups of documents ran out of memory and were scored in halves.
    Raises: OutOfMemory, DeviceLost.
    """
    started_ns = time.perf_counter_ns()
    documents = [_features(document) for _, document in ready]
    queries = [_query(job) for job, _ in ready] if lane.is_dual else None
    found = lane.runtime.score(documents, queries)
    elapsed_ns = time.perf_counter_ns() - started_ns
    for job in {job for job, _ in ready}:
        job.device.aggregation_ns += elapsed_ns
    scored = zip(ready, documents, found.scores, found.chunk_scores, strict=True)
    for (job, document), features, score, chunk_scores in scored:
        if lane.cache is not None and document.cache_key is not None:
            encoded = EncodedDocument(features.to("cpu"), document.spans, document.tokens_cut)
            lane.cache.put(document.cache_key, encoded)
        job.score(document, score, chunk_scores)
    return found.halved_groups


def _features(document: PendingDocument) -> Features:
    """All features of a document, (C, …). Raises: OutOfMemory, DeviceLost."""
    if document.whole is not None:
        return document.whole
    return gathered([chunk for chunk in document.features if chunk is not None])


def _query(job: ActiveCall) -> Features:
    if job.query_features is None:
        raise AssertionError("a dual document was aggregated before its query was encoded")
    return job.query_features


class Execution:
    """Takes in what batches became on the device, and scores what they complete, on the worker's thread."""

    def __init__(self, lock: threading.Condition, reservations: Reservations, metrics: Metrics) -> None:
        self._lock = lock
        self._reservations = reservations
        self._metrics = metrics

    def finish(self, begun: BatchInFlight, *, beside: bool) -> None:
        """Wait for a batch, keep its features, and score what it completed.

        A part that fails is isolated: its job gets an error, its companions their scores. `beside`: another
        batch is in flight, whose time on the device covers what is done here.
        Raises: DeviceLost.
        """
        lane, batch = begun.lane, begun.items
        ready: list[Ready] = []
        encoded: list[BatchInFlight] = []

        def take_in(some: Items) -> None:
            # The first attempt is the one that was begun.
            attempt = begun if some is batch else begin(lane, some, queued=begun.queued)
            ready.extend(self._take_in(attempt))
            encoded.append(attempt)

        run_isolated(take_in, batch, lambda some, error: self._encoding_failed(lane, batch, some, error))
        scoring_s = self._score(lane, ready)
        if begun.queued:
            busy_s = sum(attempt.seconds for attempt in encoded) + (0.0 if beside else scoring_s)
        else:
            busy_s = time.monotonic() - begun.began_s
        self._count_busy(lane, busy_s)
        for attempt in encoded:
            self._count(attempt)

    def score(self, lane: LoadedRanker, ready: list[Ready], *, beside: bool) -> None:
        """Score documents that need no encoding. `beside` and Raises: as `finish`."""
        scoring_s = self._score(lane, ready)
        self._count_busy(lane, 0.0 if beside else scoring_s)

    def _take_in(self, attempt: BatchInFlight) -> list[Ready]:
        done_s = attempt.wait()
        lane, items, rows = attempt.lane, attempt.items, attempt.encoding.rows()
        elapsed_ns = round(attempt.seconds * 1e9)
        # Reckoned back from its end: a batch that waited behind another was still queued.
        started_s = done_s - attempt.seconds
        for item, positions in zip(items, _positions(lane, items), strict=True):
            tally = item.payload.job.device
            tally.pairs += 1
            tally.padded_tokens += positions
            tally.queue_ns = max(tally.queue_ns, round((started_s - item.enqueued_s) * 1e9))
        for job in {item.payload.job for item in items}:
            job.device.inference_ns += elapsed_ns
        with self._lock:
            return store_features(items, rows)

    def _score(self, lane: LoadedRanker, ready: list[Ready]) -> float:
        """Aggregate documents; return the seconds that this took."""
        started_s = time.monotonic()
        if ready:
            run_isolated(
                lambda some: self._count_halved(lane, score_documents(lane, some)),
                ready,
                lambda some, error: self._failed(lane, [job for job, _ in some], error),
            )
        # Callers wait for their scores, nobody for the counters: the event loop gets the interpreter first.
        time.sleep(0)
        return time.monotonic() - started_s

    def _count_busy(self, lane: LoadedRanker, seconds: float) -> None:
        self._metrics.device_busy_seconds.labels(lane.runtime.capabilities().device).inc(seconds)

    def _count(self, done: BatchInFlight) -> None:
        lane, items, seconds = done.lane, done.items, done.seconds
        real = sum(item.tokens for item in items)
        padded = sum(_positions(lane, items))
        chunks = sum(item.payload.document is not None for item in items)
        budget = lane.batcher.budget
        budget.fitted()
        # A batch that is not full says more of the cost of a batch than of the speed.
        if padded >= budget.tokens * FULL:
            lane.speeds.encoding.observe(real, seconds)
        for item in items:
            self._reservations.done(item.payload.job.outstanding, tokens=item.tokens)
        self._metrics.count_batch(lane.name, len(items), chunks, real, padded, seconds)

    def _count_halved(self, lane: LoadedRanker, groups: int) -> None:
        if groups:
            self._metrics.batch_failures.labels(lane.name, "out_of_memory").inc(groups)

    def _encoding_failed(self, lane: LoadedRanker, batch: Items, items: Items, error: Exception) -> None:
        # Once a batch: its halves say nothing new of what a batch may hold.
        if isinstance(error, OutOfMemory) and items is batch and len(batch) > 1:
            padded = sum(_positions(lane, items))
            lane.batcher.budget.failed(padded)
            log.warning(
                "ranker %s: a batch of %d tokens ran out of memory; at most %d for a while",
                lane.name,
                padded,
                lane.batcher.budget.tokens,
            )
        self._failed(lane, [item.payload.job for item in items], error)

    def _failed(self, lane: LoadedRanker, jobs: Sequence[ActiveCall], error: Exception) -> None:
        out_of_memory = isinstance(error, OutOfMemory)
        self._metrics.batch_failures.labels(lane.name, "out_of_memory" if out_of_memory else "error").inc()
        if len(jobs) == 1:
            jobs[0].fail(_answer(lane, error))
            if not out_of_memory:
                log.error("ranker %s failed on one input", lane.name, exc_info=error)


def _positions(lane: LoadedRanker, items: Items) -> list[int]:
    return lane.batcher.policy.positions([item.tokens for item in items])


def _answer(lane: LoadedRanker, error: Exception) -> FarrankError:
    """What the caller of a failed part is told."""
    if isinstance(error, OutOfMemory):
        return ResourceExhausted(
            f"ranker {lane.name}: one chunk alone does not fit into the device's memory now",
            reason=Reason.OUT_OF_MEMORY,
            retry_after_ms=1000,
        )
    return Internal(f"ranker {lane.name} failed on this request; the server's log says why")
