"""The engine takes a validated call and returns scores. It connects all stages between sockets and device."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from prometheus_client import Gauge

from farrank_calls.errors import (
    DeadlineExceeded,
    FarrankError,
    InvalidArgument,
    Reason,
    Unavailable,
)
from farrank_calls.fairness.fair_order import CallPriority
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_rankers.adaptive import why_not_adaptive
from farrank_rankers.errors import ReadingStopped
from farrank_rankers.instruction import why_no_instruction
from farrank_runtimes.runtime import forget_locals
from farrank_server.config.schema import ServerConfig
from farrank_server.engine.admission.concurrency_limit import ConcurrencyLimit
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.reservations import RankerWork, Reservation, Reservations
from farrank_server.engine.call import (
    ActiveCall,
    AnyDocument,
    Ended,
    RerankCall,
    RerankResult,
    ScoredDocument,
    mean_of_members,
)
from farrank_server.engine.device.device_loop import DeviceState, DeviceThread
from farrank_server.engine.device.supervision import TAKEN_WITH_IT, Device
from farrank_server.engine.loaded.document_cache import DocumentCache, KnownDocuments
from farrank_server.engine.loaded.ranker import LoadedRanker, Scorer
from farrank_server.engine.ranker_metrics import count_answer
from farrank_server.engine.rounds import CallRounds
from farrank_server.engine.side_by_side import side_by_side
from farrank_server.engine.tokenization import Steps, TokenizerPool
from farrank_server.engine.versions import Versions
from farrank_server.metrics import Metrics

log = logging.getLogger(__name__)

# The assumed speed of one tokenizer thread before any measurement, in characters per second.
INITIAL_READING_PER_S = 1_000_000.0

# Below this many characters, hashing the texts costs less than a switch to another thread.
INLINE_HASH_CHARACTERS = 100_000

T = TypeVar("T")

# The work of a call's rankers, its characters to read, and its characters to hold.
Size = tuple[Sequence[RankerWork], int, int]


class Engine:
    """Everything online except the sockets. Belongs to the event loop that created it.

    `versions` has the loaded rankers, and its `rankers` and `loaded` stand here, too. `device` is the thread
    that loaded the rankers. `lost` is set when the device cannot be recovered, so that every call is refused,
    or when too many tokenizer threads hang. Only a new process helps then.
    """

    def __init__(
        self,
        config: ServerConfig,
        scorers: Sequence[Scorer],
        device: DeviceThread,
        cache: DocumentCache,
        metrics: Metrics,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        reading = Speed(INITIAL_READING_PER_S * config.tokenizer_threads)
        self.versions = Versions(scorers)
        self.rankers, self.loaded = self.versions.rankers, self.versions.loaded
        self.versions.on_enter.append(self._enter)
        self.versions.on_free.append(self._free)
        self.gate = ConcurrencyLimit(config.limits.max_concurrent_calls)
        self._metrics = metrics
        self._ids = count(1)
        self._reservations = Reservations(
            config.limits,
            {name: ranker.speeds for name, ranker in self.loaded.items()},
            reading,
            config.tokenizer_threads,
        )
        loaded, hang_after_s = list(self.loaded.values()), config.device.hang_after_s
        self.device = Device(loaded, device, self._reservations, metrics, hang_after_s)
        self.lost = self.device.lost
        self._tokenizers = TokenizerPool(
            config.tokenizer_threads,
            reading,
            self._reservations,
            self.device.submit,
            config.limits.max_document_tokens,
            on_hang=metrics.tokenizer_hangs.inc,
            on_lost=self.lost.set,
        )
        self._show_state(cache)

    def scorer_of(self, call: RerankCall) -> Scorer:
        """Find the ranker that answers a call: the same one each time, whatever is swapped meanwhile.

        Raises: NotFound.
        """
        if call.scorer is None:
            call.scorer = self.versions.find(call.ranker, call.version, call.query)
        return call.scorer

    @contextmanager
    def holding(self, call: RerankCall) -> Iterator[Scorer]:
        """Hold the ranker of a call for the duration of the context, so that it is not freed.

        Raises: NotFound.
        """
        scorer = self.scorer_of(call)
        with self.versions.using(scorer.members):
            yield scorer

    def _enter(self, ranker: LoadedRanker) -> None:
        self._reservations.enter(ranker.key, ranker.speeds)
        self.device.enter(ranker)
        self._show_ranker(ranker.name)

    def _free(self, ranker: LoadedRanker) -> None:
        self._reservations.leave(ranker.key)
        self.device.leave(ranker)

    def _members(self, call: RerankCall) -> Sequence[LoadedRanker]:
        """Find the rankers of a call. Raises: NotFound; InvalidArgument for an option that they lack."""
        members = self.scorer_of(call).members
        if call.depth is not None and call.depth.is_adaptive:
            why = why_not_adaptive(*(member.spec for member in members))
            if why is not None:
                name = call.ranker or next(iter(self.rankers))
                raise InvalidArgument(f"options.depth: ranker {name} cannot be adaptive: {why}")
        if call.token_matches and (len(members) > 1 or members[0].spec.maxsim is None):
            name = call.ranker or next(iter(self.rankers))
            raise InvalidArgument(
                f"options.return_token_matches: ranker {name} has none; only single rankers of family "
                "maxsim do"
            )
        for member in members if call.instruction else ():
            if (why := why_no_instruction(member.spec.family, member.spec.options)) is not None:
                raise InvalidArgument(f"options.instruction: ranker {member.name} takes none: {why}")
        return members

    @contextmanager
    def admitted(self, call: RerankCall, expected: Sequence[AnyDocument]) -> Iterator[Reservation]:
        """Admit a call whose documents are still to be found, for the duration of the context.

        The reservation begins with an estimate from the documents that are expected; `rerank` corrects it.
        For a ranker with a document cache the estimate has no tokens, because it is not yet known which texts
        the cache holds.
        Raises: as `Reservations.admit`; NotFound.
        """
        self.device.check_ready()
        members = self._members(call)
        reservation = self._admit(members, call, _size(call, members, expected))
        with self.versions.using(members):
            try:
                yield reservation
            finally:
                self._give_back(reservation)

    async def rerank(
        self,
        call: RerankCall,
        reserved: Reservation | None = None,
        on_admitted: Callable[[], None] | None = None,
    ) -> RerankResult:
        """Score all documents of a call.

        `reserved` is its reservation if it is admitted already; the context that admitted it gives it back.
        `on_admitted` is called as soon as the call is admitted and its texts are counted.
        Raises: the errors of `farrank_calls.errors`; CancelledError if the caller has gone. In both cases
        nothing more of the call reaches the device.
        """
        members = self._members(call)
        self.device.check_ready()
        with self.versions.using(members):
            return await self._rerank(members, call, reserved, on_admitted)

    async def _rerank(
        self,
        members: Sequence[LoadedRanker],
        call: RerankCall,
        reserved: Reservation | None,
        on_admitted: Callable[[], None] | None,
    ) -> RerankResult:
        known = [await self._known(member, call) for member in members]
        # One admission for all members: a call is admitted or refused as a whole, and its texts count once.
        size = _size(call, members, call.documents, known)
        if reserved is not None:
            with self._measured_again(members):
                self._reservations.resize(reserved, *size, time.monotonic())
            return await self._score_all(members, call, known, reserved)
        reservation = self._admit(members, call, size)
        try:
            if on_admitted is not None:
                on_admitted()
            return await self._score_all(members, call, known, reservation)
        finally:
            self._give_back(reservation)

    async def _score_all(
        self,
        members: Sequence[LoadedRanker],
        call: RerankCall,
        known: Sequence[KnownDocuments],
        reservation: Reservation,
    ) -> RerankResult:
        """Score all documents with all members of a ranker."""
        if len(members) == 1:
            return await self._score(members[0], call, known[0], reservation)
        scoring = [
            partial(self._score, member, call, its, reservation)
            for member, its in zip(members, known, strict=True)
        ]
        return mean_of_members(await side_by_side(scoring))

    def _give_back(self, reservation: Reservation) -> None:
        """Release the reservation of a call.

        If tokenizer threads still read texts of an abandoned call, the room of its texts is released only
        when they have finished.
        """
        turns = self._tokenizers.left_behind(reservation)
        if not turns:
            self._reservations.release(reservation)
            return
        self._reservations.abandon(reservation)
        leave = self.gate.stay(reservation.account)

        def give_back(_: object) -> None:
            self._reservations.release(reservation)
            leave()

        waiting = asyncio.gather(*map(asyncio.wrap_future, turns), return_exceptions=True)
        waiting.add_done_callback(give_back)

    def expected_tokens(self, call: RerankCall, documents: Sequence[AnyDocument]) -> int:
        """Estimate from the lengths of its documents how many tokens a call will have."""
        lengths = [document.characters for document in documents]
        return sum(
            member.estimate(call, lengths, call.depth_for(member)).tokens
            for member in self.scorer_of(call).members
        )

    def backlog_s(self) -> float:
        """Return the device's backlog in seconds: all work that is admitted and not yet encoded.

        The finished part of the running batch is subtracted, so that the figure can tell two busy replicas
        apart.
        """
        admitted_s = sum(
            self._reservations.outstanding_tokens(ranker.key) / ranker.tokens_per_s()
            for ranker in self.versions.members()
        )
        return max(0.0, admitted_s - self.device.loop.watchdog.done_s())

    async def check_query(self, call: RerankCall) -> None:
        """Check the query of a call that has no documents, as a call with documents would be checked.

        Raises: InvalidArgument if the query holds no token for a ranker of the call.
        """
        for member in self.scorer_of(call).members:
            await self._tokenizers.check_query(member, call)

    async def beside(self, call: RerankCall, steps: Steps[T]) -> T:
        """Run work on an answered call's texts, on the tokenizer threads and in turns with other calls.

        Raises: DeadlineExceeded.
        """
        try:
            async with asyncio.timeout_at(call.deadline_s):
                return await self._tokenizers.beside(call.account, steps)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed while texts of results were read") from None

    async def encode_query(
        self, ranker: str, query: str, deadline_s: float, record: CallRecord = NO_CALL
    ) -> NDArray[np.float32]:
        """Encode a query with a bi-encoder, in turn with all other work on the device.

        Nothing is reserved for it: the search call that needs the vector is admitted already, and a query is
        short. A query longer than `max_query_tokens` is cut, as it is for scoring. Shapes: -> (H,).
        Raises: NotFound if there is not a bi-encoder of that name; otherwise as `rerank`.
        """
        encoder = self.versions.bi_encoder(ranker)
        self.device.check_ready()
        with self.versions.using((encoder,)):
            return await self._encode_query(encoder, query, deadline_s, record)

    async def _encode_query(
        self, encoder: LoadedRanker, query: str, deadline_s: float, record: CallRecord
    ) -> NDArray[np.float32]:
        now_s = time.monotonic()
        call = RerankCall(encoder.name, query, (), None, now_s, deadline_s, record=record)
        try:
            return await self._encode_once(encoder, call)
        except Unavailable as error:
            if error.reason not in TAKEN_WITH_IT:
                raise
            forget_locals(error)
        await self._wait_until_recovered(encoder, call)
        return await self._encode_once(encoder, call)

    async def _encode_once(self, encoder: LoadedRanker, call: RerankCall) -> NDArray[np.float32]:
        deadline_s = call.deadline_s
        asked = self._loop.create_future()
        active = ActiveCall(
            next(self._ids),
            call,
            encoder,
            Reservation((), 0, 0, call.arrival_s, call.deadline_s),
            KnownDocuments(),
            asked,
        )
        try:
            async with asyncio.timeout_at(deadline_s):
                self.device.open(active)
                await self._tokenizers.prepare_query(active)
                await active.finished
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before the query was encoded") from None
        finally:
            self.device.close(active)
            active.close()
        assert active.query_features is not None, "settled without a vector"
        vector: NDArray[np.float32] = active.query_features.vectors.float().numpy()
        return vector

    async def _score(
        self, ranker: LoadedRanker, call: RerankCall, known: KnownDocuments, reservation: Reservation
    ) -> RerankResult:
        """Score all documents with one ranker. Repeat it once if the call fails because the device failed."""
        try:
            return await self._score_once(ranker, call, known, reservation)
        except Unavailable as error:
            if error.reason not in TAKEN_WITH_IT:
                raise
            forget_locals(error)
        await self._wait_until_recovered(ranker, call)
        self._reservations.begin_again(reservation, ranker.key)
        return await self._score_once(ranker, call, known, reservation)

    async def _wait_until_recovered(self, ranker: LoadedRanker, call: RerankCall) -> None:
        """Wait until a failed device is back, to run a call again.

        Raises: as `Device.wait_until_recovered`; DeadlineExceeded.
        """
        try:
            async with asyncio.timeout_at(call.deadline_s):
                await self.device.wait_until_recovered()
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed while the device was recovered") from None
        self._metrics.reruns.labels(ranker.name).inc()

    async def _score_once(
        self, ranker: LoadedRanker, call: RerankCall, known: KnownDocuments, reservation: Reservation
    ) -> RerankResult:
        active = ActiveCall(next(self._ids), call, ranker, reservation, known, self._loop.create_future())
        rounds = None
        if active.depth.is_adaptive:
            rounds = CallRounds(active, self._reservations, self.device)
            active.round = self._loop.create_future()
        ended = None
        try:
            async with asyncio.timeout_at(call.deadline_s):
                self.device.open(active)
                began_s = time.monotonic()
                read = await self._tokenizers.prepare(active, rounds)
                call.record.step(
                    "tokenize",
                    *(began_s, time.monotonic()),
                    ranker=ranker.name,
                    documents=len(call.documents),
                    chunks=read.chunks + read.scored_chunks,
                    **({"tokens": read.tokens} if rounds is None else {}),
                )
                if rounds is None:
                    to_encode = read.tokens - read.cached_tokens
                    self._reservations.correct(reservation, ranker.key, to_encode, read.chunks)
                    await active.finished
                    documents = active.scored()
                    if call.token_matches:
                        documents = await self._tokenizers.match_tokens(active, documents)
                else:
                    documents, ended = await self._read_in_rounds(rounds)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed before all documents were scored") from None
        except ReadingStopped:
            # Another stage has failed the call. Awaiting `finished` raises its error.
            await active.finished
            raise
        finally:
            self.device.close(active)
            active.close()
        tally = read + active.tally
        if rounds is not None:
            tally.chunks = sum(len(document.spans) for document in documents)
        result = RerankResult(documents, tally, ended, active.summed_vectors)
        # Count after the answer is on its way: no caller has to wait for the counters.
        priority, exemplar = call.account.priority, call.record.exemplar()
        self._loop.call_soon(count_answer, self._metrics, ranker, result, priority, exemplar)
        return result

    async def _read_in_rounds(self, rounds: CallRounds) -> tuple[tuple[ScoredDocument, ...], Ended | None]:
        """Read a call in rounds. Returns its documents, and why it ended early if it did.

        When time ends or something fails, the last finished round is the answer.
        Raises: the error of a call that failed in its first round.
        """
        call, documents, until_s = rounds.call, None, None
        try:
            # The first round was submitted when all documents had been read.
            while await call.round_ended(until_s):
                documents, until_s = call.scored(), rounds.ends_s
                if rounds.is_last:
                    return documents, None
                if time.monotonic() >= until_s:
                    break
                call.round = self._loop.create_future()
                # An event loop that runs late finds at once that a round is scored and that time is over.
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(until_s):
                        if not await self._tokenizers.next_round(rounds):
                            return documents, None
            assert documents is not None, "the first round ends, or its call fails"
            return documents, rounds.ends_by
        except FarrankError as error:
            if documents is None:
                raise
            ended = Ended.DEADLINE if isinstance(error, DeadlineExceeded) else Ended.DEVICE
            message = "ranker %s: a call is answered with its last finished round: %s"
            log.warning(message, call.ranker.name, error, extra={"call": call.call.record})
            # Break a cycle: the error, which the call holds, holds this frame, which holds the call.
            error.__traceback__ = None
            return documents, ended

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new calls and wait for those in flight.

        Calls unfinished after `timeout_s` get their last finished round, or UNAVAILABLE if there is none.
        Returns whether all calls were answered in full.
        """
        if await self.gate.drain(timeout_s):
            return True
        self.device.abandon(
            Unavailable("the server stopped before the call was complete", reason=Reason.DRAINING)
        )
        return False

    def close(self) -> None:
        """Stop the threads. Pending calls get no answer."""
        self._tokenizers.close()
        self.device.stop()

    def _admit(self, members: Sequence[LoadedRanker], call: RerankCall, size: Size) -> Reservation:
        reservation = Reservation(*size, call.arrival_s, call.deadline_s, call.account)
        with self._measured_again(members):
            return self._reservations.admit(reservation, time.monotonic())

    @contextmanager
    def _measured_again(self, members: Iterable[LoadedRanker]) -> Iterator[None]:
        """Measure the rankers of a call again if it is refused for its deadline."""
        try:
            yield
        except DeadlineExceeded:
            # The measured speed may be wrong. While calls are refused because of it, only a new measurement
            # corrects it.
            for member in members:
                self.device.doubt(member)
            raise

    async def _known(self, ranker: LoadedRanker, call: RerankCall) -> KnownDocuments:
        """Find the documents of a call that need no encoding: their encodings are cached or stored."""
        cache = ranker.cache
        if cache is None:
            return KnownDocuments()

        def look_up() -> KnownDocuments:
            encoder, limit, counts = ranker.cache_name, call.max_chunks, call.count_tokens
            keys = [
                b"" if index in stored else cache.key(encoder, limit, counts, document.key)
                for index, document in enumerate(call.documents)
            ]
            return cache.find(keys)._replace(stored=stored)

        stored = {
            index
            for index, document in enumerate(call.documents)
            if document.source(ranker.key).encodings_within(call.max_chunks) is not None
        }
        texts = [each.text for n, each in enumerate(call.documents) if n not in stored and each.text]
        if sum(map(len, texts)) <= INLINE_HASH_CHARACTERS:
            return look_up()
        return await asyncio.wrap_future(self._tokenizers.pool.submit_for(call.account, look_up))

    def _show_state(self, cache: DocumentCache) -> None:
        """Let Prometheus read, at each scrape, the values that change too often to copy."""
        metrics, device, reservations = self._metrics, self.device, self._reservations
        metrics.held_characters.set_function(reservations.held_characters)
        for priority in CallPriority:
            shown = metrics.priority_tokens.labels(priority.name.lower())
            shown.set_function(partial(reservations.outstanding_of, priority))
        metrics.cache_bytes.set_function(lambda: cache.size_bytes)
        for state in DeviceState:
            metrics.device_state.labels(state).set_function(partial(device.is_in, state))
        for name in self.loaded:
            self._show_ranker(name)

    def _show_ranker(self, name: str) -> None:
        """Show the work of a ranker, all its versions together."""
        metrics, device, reservations = self._metrics, self.device, self._reservations
        keys, loaded = partial(self.versions.keys, name), self.loaded
        by_name: list[tuple[Gauge, Callable[[], float]]] = [
            (metrics.queue_tokens, lambda: sum(map(device.queue_tokens, keys()))),
            (metrics.queue_age_seconds, lambda: max(map(device.queue_age_s, keys()), default=0.0)),
            (metrics.admitted_tokens, lambda: sum(map(reservations.outstanding_tokens, keys()))),
            (metrics.measured_speed, lambda: loaded[name].tokens_per_s() if name in loaded else 0.0),
        ]
        for gauge, value in by_name:
            gauge.labels(name).set_function(value)


def _size(
    call: RerankCall,
    members: Sequence[LoadedRanker],
    documents: Sequence[AnyDocument],
    known: Sequence[KnownDocuments] | None = None,
) -> Size:
    """Compute the work of a call's rankers, and its characters to read and to hold.

    Its texts are held once. Each member reads them unless it has cached or stored encodings or stored tokens.
    `known` is None while the texts are not known; a member with a cache then has no tokens.
    """
    work: list[RankerWork] = []
    unread = 0
    for number, member in enumerate(members):
        depth = call.depth_for(member)
        held = known[number].held if known is not None else {}
        new, encoded = list[int](), list[int]()
        for index, document in enumerate(documents):
            if index in held:
                continue
            source = document.source(member.key)
            if source.encodings_within(call.max_chunks) is not None:
                encoded.append(document.characters)
            elif known is not None or member.cache is None:
                new.append(document.characters)
                if source.tokens is None:
                    read = member.readable(document.characters, member.tokens_read(call.max_chunks, depth))
                    unread += document.characters if call.count_tokens else read
        estimated = member.estimate(call, new, depth)
        known_chunks = sum(len(document.spans) for document in held.values())
        known_chunks += member.estimate(call, encoded, depth).chunks
        work.append(replace(estimated, chunks=estimated.chunks + known_chunks))
    characters = sum(document.characters for document in documents)
    return work, unread, characters
