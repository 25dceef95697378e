"""Turns text into encoder inputs, off the event loop and in parallel."""

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from farrank_calls.errors import Internal, InvalidArgument
from farrank_calls.fairness.fair_order import Account
from farrank_calls.fairness.reader_threads import TICK_S, ReaderHung, ReaderThreads
from farrank_indexes.stored_documents import Cut, EncodedDocument, StoredTokens
from farrank_rankers.chunking import WHOLE_DOCUMENT
from farrank_rankers.errors import ReadingStopped, SpecError
from farrank_rankers.evidence.matching import QueryTerms
from farrank_rankers.reader import ChunkFramer, Reader
from farrank_rankers.token_vectors import compared_places
from farrank_rankers.tokens import TokenizedText
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.reservations import (
    READING_QUANTUM_S,
    READING_TURN_S,
    Reservation,
    Reservations,
)
from farrank_server.engine.call import (
    ActiveCall,
    PendingDocument,
    QueuedInput,
    RerankCall,
    ScoredDocument,
    Tally,
    TokenMatch,
)
from farrank_server.engine.loaded.ranker import LoadedRanker
from farrank_server.engine.rounds import CallRounds
from farrank_server.engine.side_by_side import side_by_side
from farrank_server.engine.stored import Source

log = logging.getLogger(__name__)

# A call's documents are read in slices of about this many characters (about 5 ms of a core). The device
# starts on the first slice while the next one is read, and calls take turns.
SLICE_CHARACTERS = 16_384

# Reading stored tokens is about this many times faster than tokenizing.
STORED_FASTER = 16

T = TypeVar("T")

# Work of a call in steps, between which other calls may have their turn.
Steps = Generator[None, None, T]

Submit = Callable[[ActiveCall, Sequence[QueuedInput], Sequence[PendingDocument]], None]


class TokenizerPool:
    """Runs tokenization on the threads of `pool`, which pass finished slices to the device with `submit`.

    `on_hang` is called with the number of threads found hanging; each is replaced. `on_lost` is called when
    more threads hang than the pool has: each further one would cost its memory and perhaps a core.
    """

    def __init__(
        self,
        threads: int,
        reading: Speed,
        reservations: Reservations,
        submit: Submit,
        max_document_tokens: int = WHOLE_DOCUMENT,
        on_hang: Callable[[int], None] = lambda hung: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._threads = threads
        self.pool = ReaderThreads(threads, READING_QUANTUM_S)
        self._on_hang, self._on_lost = on_hang, on_lost
        self._event_loop = asyncio.get_running_loop()
        self._ticked_s = time.monotonic()
        self._timer = self._event_loop.call_later(TICK_S, self._tick)
        self._reading = reading
        self._reservations = reservations
        self._submit = submit
        self._max_document_tokens = max_document_tokens
        self._left_behind: dict[Reservation, list[Future[Any]]] = {}

    def close(self) -> None:
        """End the threads. Slices not yet begun are dropped."""
        self._event_loop.call_soon_threadsafe(self._timer.cancel)
        self.pool.shutdown(cancel_futures=True)

    def _tick(self) -> None:
        now_s = time.monotonic()
        hung = self.pool.give_up_hung(now_s - self._ticked_s)
        self._ticked_s = now_s
        if hung:
            log.error("%d tokenizer threads hang, and were replaced; their calls are refused", hung)
            self._on_hang(hung)
        if self.pool.hung > self._threads:
            log.error("%d tokenizer threads hang, more than there are to be", self.pool.hung)
            self._on_lost()
            return
        self._timer = self._event_loop.call_later(TICK_S, self._tick)

    async def prepare(self, call: ActiveCall, rounds: CallRounds | None = None) -> Tally:
        """Read, split and submit all documents of a call. Returns counts of what was read.

        With `rounds`, documents are read whole and added to these, and only the first round is submitted.
        Raises: InvalidArgument if the query holds no token, or a document has too many; ReadingStopped.
        """
        started_ns = time.perf_counter_ns()
        slices = list(_slices(call))
        waiting, is_one_slice = iter(slices), len(slices) == 1
        framer: list[ChunkFramer] = []

        def read(indices: Sequence[int]) -> Steps[Tally]:
            tally = Tally() if framer else (yield from self._read_query(call, framer))
            if rounds is not None:
                tally += yield from self._read_whole(rounds, framer[0], indices)
            else:
                tally += yield from self._read_slice(call, framer[0], indices)
            if rounds is not None and is_one_slice:
                yield from rounds.begin()
            yield from _read_texts(call.call, indices)
            return tally

        # The first slice includes the query. The other slices then run in parallel, a few at a time.
        account = call.call.account
        total = await self._in_turns(account, read(next(waiting)), call.reservation)

        async def read_on() -> None:
            nonlocal total
            for indices in waiting:
                tally = await self._in_turns(account, read(indices), call.reservation)
                total += tally

        if not is_one_slice:
            # If one fails, the others must end first: their running turns hold the call's texts.
            await side_by_side([read_on] * self._threads)
            if rounds is not None:
                await self._in_turns(account, rounds.begin(), call.reservation)
        if rounds is not None:
            total.selection_ns = rounds.selection_ns
        total.tokenization_ns = time.perf_counter_ns() - started_ns
        return total

    def left_behind(self, reservation: Reservation) -> list[Future[Any]]:
        """Return the turns of an abandoned call that still run, and forget them.

        Each turn ends with the piece of text that it is reading.
        """
        return [turn for turn in self._left_behind.pop(reservation, ()) if not turn.done()]

    async def next_round(self, rounds: CallRounds) -> bool:
        """Plan a further round of a call and submit its inputs. Returns whether there is one."""
        return await self._in_turns(rounds.call.call.account, rounds.next(), rounds.call.reservation)

    async def _in_turns(self, account: Account, steps: Steps[T], reservation: Reservation | None = None) -> T:
        """Run steps on the pool's threads, one turn at a time, so that other calls have theirs in between.

        If the caller goes during a turn, the turn is kept in `_left_behind` for the reservation.
        """
        while True:
            turn = self.pool.submit_for(account, partial(_turn, steps))
            try:
                done = await asyncio.wrap_future(turn)
            except asyncio.CancelledError:
                if not turn.cancel() and reservation is not None:
                    self._left_behind.setdefault(reservation, []).append(turn)
                raise
            except ReaderHung as error:
                raise Internal(f"a text of this call could not be read: {error}") from error
            finally:
                # Break a cycle: an error holds this frame, and this frame would hold the turn with the error.
                del turn
            if done is not None:
                return done[0]

    async def match_tokens(
        self, call: ActiveCall, documents: Sequence[ScoredDocument]
    ) -> tuple[ScoredDocument, ...]:
        """Add token matches to the call's best documents, all of which have their scores."""
        order = sorted(range(len(documents)), key=lambda index: documents[index].rank)
        best = order[: call.call.top_n or None]
        matches = await self._in_turns(call.call.account, self._matches(call, best), call.reservation)
        return tuple(
            replace(document, matches=matches[index]) if index in matches else document
            for index, document in enumerate(documents)
        )

    def _matches(self, call: ActiveCall, indices: Sequence[int]) -> Steps[dict[int, tuple[TokenMatch, ...]]]:
        """Read documents again, for their tokens' characters: few calls need these, so none are kept."""
        reader, query = yield from _asked(call.ranker, call.call)
        asked = list(zip(query.starts.tolist(), query.ends.tolist(), strict=True))
        most = min(call.ranker.tokens_read(call.call.max_chunks, call.depth), self._max_document_tokens)
        found: dict[int, tuple[TokenMatch, ...]] = {}
        for index in filter(call.best_rows.__contains__, indices):
            document = call.call.documents[index]
            stored = document.source(call.ranker.key).tokens
            if stored is not None:
                read = stored.read(document.place, most)
            else:
                text = document.text
                if text is None and document.stored_texts is not None:
                    text = document.stored_texts.read(document.place).text
                if text is None:
                    continue
                read = yield from _in_steps(reader.document_steps(text, most))
            places = compared_places(reader, read)
            yield
            rows, similarities = call.best_rows[index]
            spans = [
                (int(read.starts[place]), int(read.ends[place])) if place >= 0 else (0, 0)
                for place in places[rows].tolist()
            ]
            found[index] = tuple(
                TokenMatch(*own, *span, similarity)
                for own, span, similarity in zip(asked, spans, similarities.tolist(), strict=True)
            )
        return found

    async def beside(self, account: Account, steps: Steps[T]) -> T:
        """Run other steps for an account, in turns with the reading of texts."""
        return await self._in_turns(account, steps)

    async def prepare_query(self, call: ActiveCall) -> None:
        """Read and submit only the query of a call, for a dual ranker.

        Raises: InvalidArgument if it holds no token.
        """
        await self._in_turns(call.call.account, self._read_query(call, []))

    async def check_query(self, ranker: LoadedRanker, call: RerankCall) -> None:
        """Check a call's query. Raises: InvalidArgument if it holds no token."""
        await self._in_turns(call.account, _asked(ranker, call))

    def _read_query(self, call: ActiveCall, framer: list[ChunkFramer]) -> Steps[Tally]:
        reader, query = yield from _asked(call.ranker, call.call)
        tally = Tally(query_tokens_cut=query.tokens_cut or 0)
        if call.ranker.is_dual:
            encoder_input = reader.query_input(query)
            tally.tokens = encoder_input.tokens
            self._submit(call, [QueuedInput(encoder_input.tokens, call, encoder_input)], [])
        framer.append(ChunkFramer(reader, None if call.ranker.is_dual else query))
        return tally

    def _read_slice(self, call: ActiveCall, framer: ChunkFramer, indices: Sequence[int]) -> Steps[Tally]:
        inputs: list[QueuedInput] = []
        documents: list[PendingDocument] = []
        tally = Tally()
        for index in indices:
            if not call.is_wanted:
                raise ReadingStopped("the call ended while its documents were read")
            held = call.known.held.get(index)
            source = call.call.documents[index].source(call.ranker.key)
            if held is None and index in call.known.stored:
                held = _stored(call, source, index)
                tally.stored_documents += 1
                tally.stored_chunks += len(held.spans)
            elif held is None:
                document, its_inputs = yield from self._read_document(call, framer, index, source.tokens)
                inputs += its_inputs
                tally.stored_documents += source.tokens is not None
            else:
                tally.cached_chunks += len(held.spans)
                tally.cached_tokens += held.tokens
            if held is not None:
                spans, cut = held.spans, held.cut
                document = PendingDocument(call, index, spans, cut, [], 0, held.tokens, whole=held.features)
            documents.append(document)
            tally.chunks += len(document.spans)
        self._submit(call, inputs, documents)
        tally.tokens = sum(each.tokens for each in inputs) + tally.cached_tokens
        return tally

    def _read_whole(self, rounds: CallRounds, framer: ChunkFramer, indices: Sequence[int]) -> Steps[Tally]:
        call, tally = rounds.call, Tally()
        for index in indices:
            if not call.is_wanted:
                raise ReadingStopped("the call ended while its documents were read")
            stored = call.call.documents[index].source(call.ranker.key).tokens
            read, cut = yield from self._read_tokens(call, index, stored)
            chunks = yield from rounds.add(framer, index, read, cut)
            tally += Tally(scored_chunks=chunks, stored_documents=stored is not None)
        return tally

    def _read_tokens(
        self, call: ActiveCall, index: int, stored: StoredTokens | None
    ) -> Steps[tuple[TokenizedText, Cut]]:
        ranker, source = call.ranker, call.call.documents[index]
        asked = ranker.tokens_read(call.call.max_chunks, call.depth)
        length, most = source.characters, min(asked, self._max_document_tokens)
        if stored is not None:
            read = stored.read(source.place, most)
        else:
            assert source.text is not None, "a document without stored tokens has a text"
            counts = call.call.count_tokens
            steps = ranker.reader.document_steps(source.text, most, count_tokens=counts)
            readable = length if counts else ranker.readable(length, most)
            read = yield from self._observed(call, steps, readable)
        cut = _cut(read, length)
        if cut.characters and (most < asked or asked >= WHOLE_DOCUMENT):
            about, tokens = "about " if read.tokens_cut is None else "", len(read) + cut.tokens
            raise InvalidArgument(
                f"documents[{index}]: has {about}{tokens:,} tokens, and ranker {ranker.name} would read "
                f"{'all' if tokens <= asked else f'{asked:,}'}; "
                f"limits.max_document_tokens is {self._max_document_tokens:,}"
            )
        ranker.density.observe(length - read.characters_cut, len(read))
        return read, cut

    def _read_document(
        self, call: ActiveCall, framer: ChunkFramer, index: int, stored: StoredTokens | None
    ) -> Steps[tuple[PendingDocument, list[QueuedInput]]]:
        read, cut = yield from self._read_tokens(call, index, stored)
        chunks = call.ranker.reader.split(read)
        inputs = framer.inputs(chunks)
        spans = np.array([(chunk.start, chunk.end) for chunk in chunks], dtype=np.uint32)
        tokens = sum(each.tokens for each in inputs)
        document = PendingDocument(call, index, spans, cut, [None] * len(chunks), len(chunks), tokens)
        return document, [
            QueuedInput(each.tokens, call, each, document, chunk) for chunk, each in enumerate(inputs)
        ]

    def _observed(
        self, call: ActiveCall, steps: Generator[int, None, TokenizedText], readable: int
    ) -> Steps[TokenizedText]:
        """Read a document and report after each step to admission how far and how fast it was read."""
        reached, busy_s = 0, 0.0
        read: TokenizedText | None = None
        while read is None:
            started_s = time.perf_counter()
            try:
                now = min(next(steps), readable)
            except StopIteration as end:
                now, read = readable, end.value
            busy_s += time.perf_counter() - started_s
            if now > reached:
                self._reading.observe((now - reached) * self._threads, busy_s)
                self._reservations.read(call.reservation, now - reached)
                reached, busy_s = now, 0.0
            if read is None:
                yield
                if not call.is_wanted:
                    raise ReadingStopped(f"stopped after {reached} characters of a document")
        return read


def _in_steps(steps: Generator[int, None, TokenizedText]) -> Steps[TokenizedText]:
    """Read a text. If the caller goes, nobody asks for the next step."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            read: TokenizedText = done.value
            return read
        yield


def _turn(steps: Steps[T]) -> tuple[T] | None:
    """Take steps until the time of a turn is over. Returns the result if the steps have ended, else None."""
    end_s = time.perf_counter() + READING_TURN_S
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return (done.value,)
        if time.perf_counter() >= end_s:
            return None


def _cut(read: TokenizedText, characters: int) -> Cut:
    """Describe the unread part of a text.

    Tokens that were not counted are estimated at the density of the tokens read, and as at least one.
    """
    tokens = read.tokens_cut
    if tokens is None:
        tokens = max(1, round(read.characters_cut * len(read) / max(1, characters - read.characters_cut)))
    return Cut(read.characters_cut, tokens)


def _stored(call: ActiveCall, source: Source, index: int) -> EncodedDocument:
    """Read the stored encodings of a document's chunks, at most as many as the call wants."""
    place, limit = call.call.documents[index].place, call.call.max_chunks
    assert source.encodings is not None, "its encodings are kept"
    whole = source.encodings.read(place)
    if limit is None or len(whole.spans) <= limit:
        return whole
    assert source.tokens is not None, "what the call's limit cuts is known of tokens"
    cut = source.tokens.read(place, call.ranker.spec.readable_tokens(limit))
    spans = whole.spans[:limit]
    return EncodedDocument(whole.features.first(len(spans)), spans, _cut(cut, 0))


def _read_texts(call: RerankCall, indices: Sequence[int]) -> Steps[None]:
    """Read the stored texts of documents if the call wants them, while the device encodes the query."""
    if (texts := call.texts) is None:
        return
    for index in indices:
        stored = call.documents[index].stored_texts
        if stored is not None and index not in texts:
            yield
            texts[index] = stored.read(call.documents[index].place)
    if len(texts) == len(call.documents):
        yield
        call.terms = QueryTerms(call.query, [each.text for each in texts.values()])


def _asked(ranker: LoadedRanker, call: RerankCall) -> Steps[tuple[Reader, TokenizedText]]:
    """Read a call's query with its instruction.

    Raises: InvalidArgument if the query holds no token, or inputs have no room for the instruction.
    """
    try:
        reader = ranker.reader.instructed(call.instruction)
    except SpecError as error:
        raise InvalidArgument(f"options.instruction: for ranker {ranker.name}, {error}") from None
    steps = reader.query_steps(call.query)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            tokens: TokenizedText = done.value
            break
        yield
    if len(tokens) == 0:
        raise InvalidArgument(
            f"query: holds no token that ranker {ranker.name} can read; it needs at least 1"
        )
    return reader, tokens


def _slices(call: ActiveCall) -> Iterator[list[int]]:
    """Divide the documents into runs of about SLICE_CHARACTERS. Encoded documents count no characters."""
    current: list[int] = []
    characters = 0
    for index, document in enumerate(call.call.documents):
        current.append(index)
        if index not in call.known.held and index not in call.known.stored:
            reads_tokens = document.source(call.ranker.key).tokens is not None
            characters += document.characters // (STORED_FASTER if reads_tokens else 1)
        if characters >= SLICE_CHARACTERS:
            yield current
            current, characters = [], 0
    if current:
        yield current
