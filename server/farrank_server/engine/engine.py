"""A validated call in, scores out: every stage between the doors and the device, wired together."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from farrank_rankers.errors import ReadingStopped
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.admission.concurrency_limit import ConcurrencyLimit
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.reservations import Admission, Request
from farrank_server.engine.call import ActiveCall, RerankCall, RerankResult
from farrank_server.engine.device.device_loop import Worker
from farrank_server.engine.ensemble import LoadedEnsemble, mean_of_members
from farrank_server.engine.rankers.document_cache import DocumentCache, EncodedDocument
from farrank_server.engine.rankers.loaded import LoadedRanker
from farrank_server.engine.tokenization import TokenizerPool
from farrank_server.errors import DeadlineExceeded, FarrankError, NotFound, Reason, Unavailable
from farrank_server.metrics import Metrics

# Until measured: what one tokenizer thread reads, in characters per second.
INITIAL_READING_PER_S = 1_000_000.0

# Below this many characters, hashing texts costs less than a trip to another thread.
INLINE_HASH_CHARACTERS = 100_000


class Engine:
    """Everything online but the doors. Belongs to the event loop that made it.

    `device` is the thread that loaded the lanes, see `device_thread`. `lost` is set when the device cannot be
    brought back: every call is refused from then on.
    """

    def __init__(
        self,
        config: ServerConfig,
        lanes: Sequence[LoadedRanker],
        device: ThreadPoolExecutor,
        cache: DocumentCache,
        metrics: Metrics,
        ensembles: Sequence[LoadedEnsemble] = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        reading = Speed(INITIAL_READING_PER_S * config.tokenizer_threads)
        self.loaded = {lane.name: lane for lane in lanes}
        self.ensembles = {ensemble.name: ensemble for ensemble in ensembles}
        self._default = config.default_ranker
        self.lost = asyncio.Event()
        self.gate = ConcurrencyLimit(config.limits.max_concurrent_calls)
        self._metrics = metrics
        self._ids = count(1)
        self._admission = Admission(config.limits, {lane.name: lane.speed for lane in lanes}, reading)
        self._worker = Worker(lanes, device, self._admission, metrics, self._on_lost)
        self._preparation = TokenizerPool(
            config.tokenizer_threads, reading, self._admission, self._worker.submit
        )
        self._show_state(cache)

    def scorer(self, name: str) -> LoadedRanker | LoadedEnsemble:
        """Find a ranker; the empty name is the default one's.

        Raises: NotFound listing the known rankers.
        """
        name = name or self._default
        found = self.loaded.get(name) or self.ensembles.get(name)
        if found is None:
            known = ", ".join([*self.loaded, *self.ensembles])
            raise NotFound(f"options.ranker: no ranker {name[:100]!r} here; known are: {known}")
        return found

    async def rerank(self, call: RerankCall) -> RerankResult:
        """Score all documents of a call.

        Raises: the errors of `farrank_server.errors`; CancelledError if the caller has gone. Either way
        nothing of the call reaches the device any more.
        """
        scorer = self.scorer(call.ranker)
        if isinstance(scorer, LoadedRanker):
            return await self._rerank(scorer, call)
        tasks = []
        try:
            # The first to be refused or to fail ends the others: a call is answered whole or not at all.
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._rerank(lane, call)) for lane in scorer.members]
        except* FarrankError as failures:
            raise failures.exceptions[0] from None
        return mean_of_members(scorer, [task.result() for task in tasks])

    async def _rerank(self, lane: LoadedRanker, call: RerankCall) -> RerankResult:
        keys = await self._cache_keys(lane, call)
        cached = _found(lane.cache, keys)
        job = self._admit(lane, call, cached)
        try:
            async with asyncio.timeout_at(call.deadline_s):
                self._worker.open(lane, job)
                await self._preparation.prepare(lane, job, cached, keys)
                self._admission.correct(job.ticket, job.read.tokens)
                await job.finished
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before all documents were scored") from None
        except ReadingStopped:
            # Another stage has failed the job: its error is the answer.
            await job.finished
            raise
        finally:
            self._worker.close(job)
            self._admission.release(job.ticket)
            job.close()
        documents = tuple(job.results[index] for index in range(len(call.texts)))
        outcome = RerankResult(lane, documents, job.read, job.tokenization_ns, job.device)
        # Once the answer is on its way: nobody waits for the counters.
        self._loop.call_soon(self._count, lane, outcome)
        return outcome

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new calls and wait for those inside; what is not done in time is answered UNAVAILABLE.

        Returns whether all were answered in full.
        """
        if await self.gate.drain(timeout_s):
            return True
        self._worker.abandon(Unavailable("the server ended before the call was done", reason=Reason.DRAINING))
        return False

    def close(self) -> None:
        """Stop the threads; calls still waiting are not answered."""
        self._preparation.close()
        self._worker.stop()

    def _admit(
        self, lane: LoadedRanker, call: RerankCall, cached: Mapping[int, EncodedDocument]
    ) -> ActiveCall:
        new = [len(text) for index, text in enumerate(call.texts) if index not in cached]
        request = Request(
            lane.name,
            tokens=sum(lane.estimate_tokens(call.query, length, call.max_chunks) for length in new),
            unread=sum(new),
            held=sum(map(len, call.texts)),
            arrival_s=call.arrival_s,
            deadline_s=call.deadline_s,
        )
        ticket = self._admission.admit(request, time.monotonic())
        return ActiveCall(next(self._ids), call, ticket, lane.is_dual, self._loop, self._loop.create_future())

    def _on_lost(self) -> None:
        self._loop.call_soon_threadsafe(self.lost.set)

    async def _cache_keys(self, lane: LoadedRanker, call: RerankCall) -> list[bytes] | None:
        """Name the documents' encodings; None for a ranker whose chunks cannot be kept."""
        cache = lane.cache
        if cache is None:
            return None

        def keys() -> list[bytes]:
            return [cache.key(lane.cache_name, call.max_chunks, text) for text in call.texts]

        if sum(map(len, call.texts)) <= INLINE_HASH_CHARACTERS:
            return keys()
        return await self._preparation.run(keys)

    def _count(self, lane: LoadedRanker, outcome: RerankResult) -> None:
        metrics, name, read, device = self._metrics, lane.name, outcome.read, outcome.device
        if lane.cache is not None:
            metrics.cache_hits.labels(name).inc(read.cached_chunks)
            metrics.cache_misses.labels(name).inc(read.chunks - read.cached_chunks)
        metrics.cut_tokens.labels(name, "query").inc(read.query_tokens_cut)
        metrics.cut_tokens.labels(name, "document").inc(sum(each.tokens_cut for each in outcome.documents))
        chunks, deciding = metrics.document_chunks.labels(name), metrics.deciding_chunk.labels(name)
        for document in outcome.documents:
            chunks.observe(len(document.spans))
            deciding.observe(document.deciding_chunk + 1)
        for stage, ns in (
            ("tokenization", outcome.tokenization_ns),
            ("queue", device.queue_ns),
            ("inference", device.inference_ns),
            ("aggregation", device.aggregation_ns),
        ):
            metrics.stage_seconds.labels(name, stage).observe(ns / 1e9)

    def _show_state(self, cache: DocumentCache) -> None:
        """Let Prometheus read at each scrape what changes too often to be copied."""
        watch, by_ranker = self._metrics.watch, ("ranker",)
        watch("queue_tokens", "Tokens that wait for the device", by_ranker, self._worker.queue_tokens)
        watch("queue_age_seconds", "Wait of the input that is due first", by_ranker, self._worker.queue_age_s)
        watch(
            "admitted_tokens",
            "Tokens admitted and not yet encoded",
            by_ranker,
            lambda: {(name,): float(self._admission.outstanding_tokens(name)) for name in self.loaded},
        )
        watch(
            "held_characters",
            "Characters that calls in flight hold",
            (),
            lambda: {(): float(self._admission.held_characters())},
        )
        watch(
            "device_tokens_per_second",
            "The measured speed that admission reckons with",
            by_ranker,
            lambda: {(name,): lane.speed.per_s for name, lane in self.loaded.items()},
        )
        watch("cache_bytes", "What the document cache holds", (), lambda: {(): cache.size_bytes})


def _found(cache: DocumentCache | None, keys: Sequence[bytes] | None) -> dict[int, EncodedDocument]:
    """Those documents of a call, by index, that the cache holds."""
    if cache is None or keys is None:
        return {}
    return {index: entry for index, entry in enumerate(cache.find(keys)) if entry is not None}
