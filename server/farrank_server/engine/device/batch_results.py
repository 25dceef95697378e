"""What becomes of a batch: features are taken in, complete documents are scored, failures are isolated."""

import logging
import math
import time
from collections.abc import Sequence

from farrank_rankers.features import Features
from farrank_runtimes.document_groups import gathered, kept
from farrank_runtimes.runtime import DeviceLost, OutOfMemory
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, PendingDocument, QueuedInput
from farrank_server.engine.device.batch_in_flight import BatchInFlight, Items, begin, positions
from farrank_server.engine.device.bisection import run_isolated
from farrank_server.engine.device.watchdog import Watchdog
from farrank_server.engine.device.work_queue import RankerQueue, Ready, WorkQueue
from farrank_server.engine.rankers.document_cache import EncodedDocument
from farrank_server.engine.rankers.loaded import LoadedRanker
from farrank_server.errors import FarrankError, Internal, Reason, ResourceExhausted
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

# The share of the budget from which on a batch counts as full.
FULL = 0.5

# So many calls fail one after the other, and nothing succeeds between them, before an input that is known to
# be good is tried: if that fails too, the device is at fault and not what callers sent.
FAILURES_BEFORE_PROBE = 3


class BatchResults:
    """Takes in what batches became on the device, and scores what they complete, on the device's thread.

    `has_succeeded`: whether anything came out well since somebody last set it to False.
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

    def finish(self, batch: BatchInFlight, *, beside: bool) -> None:
        """Wait for a batch, keep its features, and score what it completed.

        An input that fails is isolated: its call gets an error, its companions their scores. `beside`:
        another batch is in flight, whose time on the device covers what is done here.
        Raises: DeviceLost.
        """
        queue = batch.queue
        ready: list[Ready] = []
        encoded: list[BatchInFlight] = []

        def take_in(some: Items) -> None:
            attempt = batch
            # The first attempt is the one that was begun; others leave out calls that have ended since.
            if some is not batch.items:
                some = [item for item in some if self._work.is_open(item.call)]
                if not some:
                    return
                attempt = begin(queue, some, self._watchdog)
            ready.extend(self._take_in(attempt))
            encoded.append(attempt)

        run_isolated(take_in, batch.items, lambda some, error: self._encoding_failed(batch, some, error))
        scoring_s = self._score(queue, ready, beside=beside)
        if batch.is_queued:
            busy_s = sum(attempt.seconds for attempt in encoded) + (0.0 if beside else scoring_s)
        else:
            busy_s = time.monotonic() - batch.began_s
        self._count_busy(queue.ranker, busy_s)
        for attempt in encoded:
            self._count(attempt)

    def score(self, queue: RankerQueue, ready: Sequence[Ready], *, beside: bool) -> None:
        """Score documents that need no encoding. `beside` and Raises: as `finish`."""
        scoring_s = self._score(queue, ready, beside=beside)
        self._count_busy(queue.ranker, 0.0 if beside else scoring_s)

    def _take_in(self, attempt: BatchInFlight) -> list[Ready]:
        done_s = attempt.wait(self._watchdog)
        queue, items, rows = attempt.queue, attempt.items, attempt.encoding.rows()
        self._succeeded()
        elapsed_ns = round(attempt.seconds * 1e9)
        # Counted back from its end: a batch that waited behind another was still queued.
        started_s = done_s - attempt.seconds
        for item, taken in zip(items, positions(queue, items), strict=True):
            tally = item.call.device
            tally.pairs += 1
            tally.padded_tokens += taken
            tally.queue_ns = max(tally.queue_ns, round((started_s - item.enqueued_s) * 1e9))
        for call in {item.call for item in items}:
            call.device.inference_ns += elapsed_ns
        return self._store(items, rows)

    def _store(self, items: Items, rows: Sequence[Features]) -> list[Ready]:
        """Put each input's features in its place; return the documents that can be scored now.

        A row is an item's, (F,) or (S, F…).
        """
        ready: list[Ready] = []
        incomplete: list[QueuedInput] = []
        for item, row in zip(items, rows, strict=True):
            call, document = item.call, item.document
            if not self._work.is_open(call):
                continue
            if document is None:
                ready.extend((call, waited) for waited in call.query_arrived(row))
                continue
            document.features[item.chunk] = row
            document.missing -= 1
            incomplete.append(item)
            if document.missing == 0:
                self._work.count_kept(call, -document.kept_bytes)
                ready.extend((call, whole) for whole in call.ready_with(document))
        for item in incomplete:
            if item.document is not None and item.document.missing > 0:
                self._keep(item, item.document)
        return ready

    def _keep(self, item: QueuedInput, document: PendingDocument) -> None:
        """Let a chunk's features wait for the others of its document: on the device while there is room."""
        row, most = document.features[item.chunk], item.call.ranker.capabilities.max_kept_bytes
        if row is None:
            return
        fits = most is None or self._work.kept_bytes + row.nbytes <= most
        with self._watchdog.step():
            # A row of a batch is a view, which would keep the whole batch in memory.
            document.features[item.chunk] = kept(row, on_host=not fits)
        if most is not None and fits:
            document.kept_bytes += row.nbytes
            self._work.count_kept(item.call, row.nbytes)

    def _score(self, queue: RankerQueue, ready: Sequence[Ready], *, beside: bool) -> float:
        """Score documents; return the seconds that this took."""
        started_s = time.monotonic()
        scored = 0

        def score(some: Sequence[Ready]) -> None:
            nonlocal scored
            some = [each for each in some if self._work.is_open(each[0])]
            if some:
                self._score_together(queue.ranker, some)
                scored += sum(len(document.spans) for _, document in some)

        if ready:
            run_isolated(score, ready, lambda some, error: self._scoring_failed(queue.ranker, some, error))
        # Callers wait for their scores, nobody for the counters: the event loop gets the interpreter first.
        time.sleep(0)
        scoring_s = time.monotonic() - started_s
        if not beside:
            queue.ranker.speeds.scoring.observe(scored, scoring_s)
        return scoring_s

    def _score_together(self, ranker: LoadedRanker, ready: Sequence[Ready]) -> None:
        """Score documents of any number of calls at once; resolve the calls that this finished.

        Raises: OutOfMemory, DeviceLost.
        """
        started_ns = time.perf_counter_ns()
        chunks = sum(len(document.spans) for _, document in ready)
        with self._watchdog.step(chunks / ranker.speeds.scoring.per_s):
            documents = [_features(document) for _, document in ready]
            queries = [_query(call) for call, _ in ready] if ranker.is_dual else None
            found = ranker.runtime.score(documents, queries)
        self._succeeded()
        if found.halved_groups:
            self._metrics.batch_failures.labels(ranker.name, "out_of_memory").inc(found.halved_groups)
        elapsed_ns = time.perf_counter_ns() - started_ns
        for call in {call for call, _ in ready}:
            call.device.aggregation_ns += elapsed_ns
        scored = zip(ready, documents, found.scores, found.chunk_scores, strict=True)
        for (call, document), features, score, chunk_scores in scored:
            self._reservations.done(call.outstanding, chunks=len(document.spans))
            if not all(map(math.isfinite, (score, *chunk_scores))):
                self._fail_not_finite(ranker, call, document, score)
                continue
            if ranker.cache is not None and document.cache_key is not None:
                encoded = EncodedDocument(features.to("cpu"), document.spans, document.cut)
                ranker.cache.put(document.cache_key, encoded)
            call.score(document, score, chunk_scores)
            if call.is_complete:
                call.resolve()
                self._work.forget(call)

    def _fail_not_finite(
        self, ranker: LoadedRanker, call: ActiveCall, document: PendingDocument, score: float
    ) -> None:
        # Not a number compares with nothing: the other documents could not be put in order either.
        log.error(
            "ranker %s gave a document of %d chunks the score %s", ranker.name, len(document.spans), score
        )
        self._metrics.batch_failures.labels(ranker.name, "not_finite").inc()
        self._give_up(
            call, Internal(f"ranker {ranker.name}: documents[{document.index}] has no finite score")
        )

    def _count_busy(self, ranker: LoadedRanker, seconds: float) -> None:
        self._metrics.device_busy_seconds.labels(ranker.capabilities.device).inc(seconds)

    def _count(self, done: BatchInFlight) -> None:
        queue, items, seconds = done.queue, done.items, done.seconds
        real = sum(item.tokens for item in items)
        padded = sum(positions(queue, items))
        chunks = sum(item.document is not None for item in items)
        budget = queue.batcher.budget
        budget.fitted()
        # A batch that is not full says more of the cost of a batch than of the speed.
        if padded >= budget.tokens * FULL:
            queue.ranker.speeds.encoding.observe(real, seconds)
        for item in items:
            self._reservations.done(item.call.outstanding, tokens=item.tokens)
        self._metrics.count_batch(queue.ranker.name, len(items), chunks, real, padded, seconds)

    def _encoding_failed(self, batch: BatchInFlight, items: Items, error: Exception) -> None:
        queue = batch.queue
        # Once a batch: its halves say nothing new of what a batch may hold.
        if isinstance(error, OutOfMemory) and items is batch.items and len(items) > 1:
            padded = sum(positions(queue, items))
            queue.batcher.budget.failed(padded)
            log.warning(
                "ranker %s: a batch of %d tokens ran out of memory; at most %d for a while",
                queue.ranker.name,
                padded,
                queue.batcher.budget.tokens,
            )
        self._failed(queue.ranker, [item.call for item in items], error)

    def _scoring_failed(self, ranker: LoadedRanker, ready: Sequence[Ready], error: Exception) -> None:
        self._failed(ranker, [call for call, _ in ready], error)

    def _failed(self, ranker: LoadedRanker, calls: Sequence[ActiveCall], error: Exception) -> None:
        out_of_memory = isinstance(error, OutOfMemory)
        self._metrics.batch_failures.labels(ranker.name, "out_of_memory" if out_of_memory else "error").inc()
        if len(calls) > 1:
            return
        if not out_of_memory:
            log.error("ranker %s failed on one input", ranker.name, exc_info=error)
        self._give_up(calls[0], _answer(ranker, error))
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= FAILURES_BEFORE_PROBE:
            self._probe(ranker)

    def _give_up(self, call: ActiveCall, error: FarrankError) -> None:
        """Answer a call with an error, and run nothing more of it."""
        call.fail(error)
        self._work.forget(call)

    def _succeeded(self) -> None:
        self._failed_in_a_row = 0
        self.has_succeeded = True

    def _probe(self, ranker: LoadedRanker) -> None:
        """Find out whether the device is at fault, or what callers sent. Raises: DeviceLost."""
        try:
            with self._watchdog.step():
                ranker.runtime.encode([ranker.probe]).rows()
        except DeviceLost:
            raise
        except Exception as error:
            raise DeviceLost(f"it fails on every input: {error}") from error
        self._failed_in_a_row = 0


def _features(document: PendingDocument) -> Features:
    """All features of a document, (C, …). Raises: OutOfMemory, DeviceLost."""
    if document.whole is not None:
        return document.whole
    return gathered([chunk for chunk in document.features if chunk is not None])


def _query(call: ActiveCall) -> Features:
    if call.query_features is None:
        raise AssertionError("a dual document was scored before its query was encoded")
    return call.query_features


def _answer(ranker: LoadedRanker, error: Exception) -> FarrankError:
    """What the caller of a failed input is told."""
    if isinstance(error, OutOfMemory):
        return ResourceExhausted(
            f"ranker {ranker.name}: one chunk alone does not fit into the device's memory now",
            reason=Reason.OUT_OF_MEMORY,
            retry_after_ms=1000,
        )
    return Internal(f"ranker {ranker.name} failed on this request; the server's log says why")
