"""A validated call in, scores out: every stage between the sockets and the device, wired together."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, repeat

from farrank_rankers.errors import ReadingStopped
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.admission.concurrency_limit import ConcurrencyLimit
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.reservations import Claim, Reservation, Reservations, Work
from farrank_server.engine.call import ActiveCall, RerankCall, RerankResult
from farrank_server.engine.device.device_loop import DeviceState, DeviceThread
from farrank_server.engine.device.supervision import Device
from farrank_server.engine.ensemble import LoadedEnsemble, mean_of_members
from farrank_server.engine.rankers.document_cache import DocumentCache, EncodedDocument
from farrank_server.engine.rankers.loaded import LoadedRanker
from farrank_server.engine.tokenization import TokenizerPool
from farrank_server.errors import DeadlineExceeded, NotFound, Reason, Unavailable
from farrank_server.metrics import Metrics

# Until measured: what one tokenizer thread reads, in characters per second.
INITIAL_READING_PER_S = 1_000_000.0

# Below this many characters, hashing texts costs less than a trip to another thread.
INLINE_HASH_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class _Known:
    """What one ranker's cache knows of a call: the documents it holds, by index, and the keys of all."""

    keys: Sequence[bytes] | None
    cached: Mapping[int, EncodedDocument]


class Engine:
    """Everything online but the sockets. Belongs to the event loop that made it.

    `device` is the thread that loaded the rankers. `lost` is set when the device cannot be brought back:
    every call is refused from then on.
    """

    def __init__(
        self,
        config: ServerConfig,
        loaded: Sequence[LoadedRanker],
        device: DeviceThread,
        cache: DocumentCache,
        metrics: Metrics,
        ensembles: Sequence[LoadedEnsemble] = (),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        reading = Speed(INITIAL_READING_PER_S * config.tokenizer_threads)
        self.loaded = {ranker.name: ranker for ranker in loaded}
        self.ensembles = {ensemble.name: ensemble for ensemble in ensembles}
        self._config = config
        self.lost = asyncio.Event()
        self.gate = ConcurrencyLimit(config.limits.max_concurrent_calls)
        self._metrics = metrics
        self._ids = count(1)
        self._reservations = Reservations(
            config.limits, {ranker.name: ranker.speeds for ranker in loaded}, reading
        )
        self.device = Device(loaded, device, self._reservations, metrics, config.device.hang_after_s)
        self.device.on_change.append(self._on_device_change)
        self._tokenizers = TokenizerPool(
            config.tokenizer_threads, reading, self._reservations, self.device.submit
        )
        self._show_state(cache)

    def rankers(self) -> list[LoadedRanker | LoadedEnsemble]:
        """List all rankers as they are configured, the default one first; members follow their ensemble."""
        ordered: list[LoadedRanker | LoadedEnsemble] = []
        for name in self._config.rankers:
            if name in self.ensembles:
                ordered += [self.ensembles[name], *self.ensembles[name].members]
            else:
                ordered.append(self.loaded[name])
        return ordered

    def scorer(self, name: str) -> LoadedRanker | LoadedEnsemble:
        """Find a ranker; the empty name is the default one's.

        Raises: NotFound listing the known rankers.
        """
        name = name or self._config.default_ranker
        found = self.loaded.get(name) or self.ensembles.get(name)
        if found is None:
            known = ", ".join(ranker.name for ranker in self.rankers())
            raise NotFound(f"options.ranker: no ranker {name[:100]!r} here; known are: {known}")
        return found

    @contextmanager
    def reserve(self, call: RerankCall, lengths: Sequence[int]) -> Iterator[Reservation]:
        """Keep a place for a call whose texts are still to be found, given about how long each will be.

        For a ranker with a document cache no tokens are reserved: which texts it holds is not known yet.
        Raises: as `Reservations.admit`; NotFound.
        """
        self.device.check_ready()
        members = self._members(self.scorer(call.ranker))
        new = [() if member.cache is not None else lengths for member in members]
        reservation = self._admit(_claim(call, members, new, sum(lengths)))
        try:
            yield reservation
        finally:
            self._reservations.release(reservation)

    async def rerank(self, call: RerankCall, reserved: Reservation | None = None) -> RerankResult:
        """Score all documents of a call, which takes the place of what was reserved for it.

        Raises: the errors of `farrank_server.errors`; CancelledError if the caller has gone. Either way
        nothing of the call reaches the device any more.
        """
        scorer = self.scorer(call.ranker)
        self.device.check_ready()
        members = self._members(scorer)
        known = [await self._known(member, call) for member in members]
        # As one: a call is admitted or refused whole, and its texts are held once for all members.
        new = [
            [len(text) for index, text in enumerate(call.texts) if index not in its.cached] for its in known
        ]
        cached_chunks = [sum(len(document.spans) for document in its.cached.values()) for its in known]
        claim = _claim(call, members, new, sum(map(len, call.texts)), cached_chunks)
        reservation = self._admit(claim, reserved)
        try:
            if isinstance(scorer, LoadedRanker):
                return await self._score(scorer, call, known[0], reservation)
            scoring = [
                asyncio.ensure_future(self._score(member, call, its, reservation))
                for member, its in zip(members, known, strict=True)
            ]
            try:
                # The first to fail ends the others.
                return mean_of_members(scorer, await asyncio.gather(*scoring))
            finally:
                for task in scoring:
                    task.cancel()
                await asyncio.wait(scoring)
        finally:
            self._reservations.release(reservation)

    async def _score(
        self, ranker: LoadedRanker, call: RerankCall, known: _Known, reservation: Reservation
    ) -> RerankResult:
        """Score all documents with one ranker."""
        outstanding = reservation.outstanding[ranker.name]
        finished = self._loop.create_future()
        active = ActiveCall(next(self._ids), call, ranker, reservation, outstanding, self._loop, finished)
        try:
            async with asyncio.timeout_at(call.deadline_s):
                self.device.open(active)
                await self._tokenizers.prepare(active, known.cached, known.keys)
                self._reservations.correct(outstanding, active.read.tokens, active.read.chunks)
                await finished
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before all documents were scored") from None
        except ReadingStopped:
            # Another stage has failed the call: its error is the answer.
            await finished
            raise
        finally:
            self.device.close(active)
            active.close()
        documents = tuple(active.results[index] for index in range(len(call.texts)))
        result = RerankResult(ranker, documents, active.read, active.tokenization_ns, active.device)
        # Once the answer is on its way: nobody waits for the counters.
        self._loop.call_soon(self._metrics.count_answer, ranker, result)
        return result

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new calls and wait for those inside; what is not done in time is answered UNAVAILABLE.

        Returns whether all were answered in full.
        """
        if await self.gate.drain(timeout_s):
            return True
        self.device.abandon(Unavailable("the server ended before the call was done", reason=Reason.DRAINING))
        return False

    def close(self) -> None:
        """Stop the threads; calls still waiting are not answered."""
        self._tokenizers.close()
        self.device.stop()

    def _members(self, scorer: LoadedRanker | LoadedEnsemble) -> Sequence[LoadedRanker]:
        return (scorer,) if isinstance(scorer, LoadedRanker) else scorer.members

    def _admit(self, claim: Claim, reserved: Reservation | None = None) -> Reservation:
        try:
            return self._reservations.admit(claim, time.monotonic(), instead_of=reserved)
        except DeadlineExceeded:
            # The measured speed may be wrong, and while calls are refused for it nothing else corrects it.
            for work in claim.work:
                self.device.doubt(self.loaded[work.ranker])
            raise

    def _on_device_change(self, state: DeviceState) -> None:
        if state is DeviceState.LOST:
            self.lost.set()

    async def _known(self, ranker: LoadedRanker, call: RerankCall) -> _Known:
        """Look up which documents of a call need no encoding."""
        cache = ranker.cache
        if cache is None:
            return _Known(None, {})

        def look_up() -> _Known:
            keys = [
                cache.key(ranker.cache_name, call.max_chunks, call.count_tokens, text) for text in call.texts
            ]
            found = {index: entry for index, entry in enumerate(cache.find(keys)) if entry is not None}
            return _Known(keys, found)

        if sum(map(len, call.texts)) <= INLINE_HASH_CHARACTERS:
            return look_up()
        return await self._tokenizers.run(look_up)

    def _show_state(self, cache: DocumentCache) -> None:
        """Let Prometheus read at each scrape what changes too often to be copied."""
        metrics, device, reservations = self._metrics, self.device, self._reservations
        metrics.held_characters.set_function(reservations.held_characters)
        metrics.cache_bytes.set_function(lambda: cache.size_bytes)
        for state in DeviceState:
            metrics.device_state.labels(state).set_function(partial(device.is_in, state))
        for name, ranker in self.loaded.items():
            metrics.queue_tokens.labels(name).set_function(partial(device.queue_tokens, name))
            metrics.queue_age_seconds.labels(name).set_function(partial(device.queue_age_s, name))
            metrics.admitted_tokens.labels(name).set_function(partial(reservations.outstanding_tokens, name))
            metrics.measured_speed.labels(name).set_function(ranker.tokens_per_s)


def _claim(
    call: RerankCall,
    members: Sequence[LoadedRanker],
    new: Sequence[Sequence[int]],
    held: int,
    cached_chunks: Iterable[int] = repeat(0),
) -> Claim:
    """Say what a call asks for: its texts are held once, and read by each member that has not cached them.

    `new`: the lengths of those that a member reads.
    """
    work: list[Work] = []
    least = unread = 0
    for member, lengths, cached in zip(members, new, cached_chunks, strict=False):
        estimated = member.estimate(call.query, lengths, call.max_chunks)
        work.append(replace(estimated, chunks=estimated.chunks + cached))
        least += member.estimate(call.query, lengths, call.max_chunks, least=True).tokens
        unread += sum(member.readable(length, call.count_tokens) for length in lengths)
    return Claim(work, unread, held, call.arrival_s, call.deadline_s, least)
