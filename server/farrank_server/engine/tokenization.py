"""Text becomes encoder inputs, off the event loop and in parallel."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from farrank_rankers.chunking import readable_tokens
from farrank_rankers.errors import ReadingStopped
from farrank_rankers.features import Features
from farrank_rankers.reader import ChunkFramer
from farrank_rankers.tokens import TokenizedText
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, PendingDocument, QueuedInput, Tally
from farrank_server.engine.rankers.document_cache import EncodedDocument
from farrank_server.engine.spans import Cut, Span
from farrank_server.engine.stored import Source, StoredTokens
from farrank_server.errors import InvalidArgument

# A call's documents are read in slices of about this many characters (some 5 ms of a core): the device
# starts on the first while the next is read, and calls take turns.
SLICE_CHARACTERS = 16_384

# So many times faster than text becomes tokens, tokens are read that are kept beside an index.
STORED_FASTER = 16

Submit = Callable[[ActiveCall, Sequence[QueuedInput], Sequence[PendingDocument]], None]


class TokenizerPool:
    """The threads of `pool`. From there `submit` hands finished slices to the device's thread."""

    def __init__(self, threads: int, reading: Speed, reservations: Reservations, submit: Submit) -> None:
        self._threads = threads
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="farrank-reader")
        self._reading = reading
        self._reservations = reservations
        self._submit = submit

    def close(self) -> None:
        """End the threads; slices not begun are dropped."""
        self.pool.shutdown(cancel_futures=True)

    async def prepare(self, call: ActiveCall) -> Tally:
        """Read, split and submit all documents of a call; say what was read.

        Raises: InvalidArgument if the query holds no token; ReadingStopped if the call ended meanwhile.
        """
        started_ns = time.perf_counter_ns()
        loop = asyncio.get_running_loop()
        slices = iter(list(_slices(call)))
        framer: list[ChunkFramer] = []

        def read(indices: Sequence[int]) -> Tally:
            brought = Tally() if framer else self._read_query(call, framer)
            return brought + self._read_slice(call, framer[0], indices)

        # The first slice brings the query; the others then go side by side, a few at a time.
        total = await loop.run_in_executor(self.pool, read, next(slices))

        async def read_on() -> None:
            nonlocal total
            for indices in slices:
                tally = await loop.run_in_executor(self.pool, read, indices)
                total += tally

        if len(call.call.documents) > 1:
            await asyncio.gather(*(read_on() for _ in range(self._threads)))
        total.tokenization_ns = time.perf_counter_ns() - started_ns
        return total

    async def prepare_query(self, call: ActiveCall) -> None:
        """Read and submit the query of a call to a dual ranker that has no documents.

        Raises: InvalidArgument if it holds no token.
        """
        await asyncio.get_running_loop().run_in_executor(self.pool, self._read_query, call, [])

    def _read_query(self, call: ActiveCall, framer: list[ChunkFramer]) -> Tally:
        query = call.ranker.reader.read_query(call.call.query)
        if len(query) == 0:
            raise InvalidArgument(
                f"query: holds no token that ranker {call.ranker.name} can read; it needs at least 1"
            )
        brought = Tally(query_tokens_cut=query.tokens_cut or 0)
        if call.ranker.is_dual:
            encoder_input = call.ranker.reader.query_input(query)
            brought.tokens = encoder_input.tokens
            self._submit(call, [QueuedInput(encoder_input.tokens, call, encoder_input)], [])
        framer.append(ChunkFramer(call.ranker.reader, None if call.ranker.is_dual else query))
        return brought

    def _read_slice(self, call: ActiveCall, framer: ChunkFramer, indices: Sequence[int]) -> Tally:
        inputs: list[QueuedInput] = []
        documents: list[PendingDocument] = []
        brought = Tally()
        for index in indices:
            if not call.is_wanted:
                raise ReadingStopped("the call ended while its documents were read")
            held = call.known.held.get(index)
            source = call.call.documents[index].source(call.ranker.name)
            if held is None and index in call.known.stored:
                held = _stored(call, source, index)
                brought.stored_documents += 1
                brought.stored_chunks += len(held.spans)
            elif held is None:
                document, its_inputs = self._read_document(call, framer, index, source.tokens)
                inputs += its_inputs
                brought.stored_documents += source.tokens is not None
            else:
                brought.cached_chunks += len(held.spans)
            if held is not None:
                document = PendingDocument(call, index, held.spans, held.cut, [], 0, whole=held.features)
            documents.append(document)
            brought.chunks += len(document.spans)
        self._submit(call, inputs, documents)
        brought.tokens = sum(each.tokens for each in inputs)
        return brought

    def _read_document(
        self, call: ActiveCall, framer: ChunkFramer, index: int, stored: StoredTokens | None
    ) -> tuple[PendingDocument, list[QueuedInput]]:
        ranker, limit, brought = call.ranker, call.call.max_chunks, call.call.documents[index]
        length = brought.characters
        started_s = time.perf_counter()
        if stored is not None:
            read = stored.read(brought.place, readable_tokens(ranker.spec.chunking, limit))
        else:
            assert brought.text is not None, "a document that is not kept beside an index brings its text"
            read = ranker.reader.read_document(
                brought.text, limit, should_stop=call.finished.done, count_tokens=call.call.count_tokens
            )
        chunks = ranker.reader.split(read, limit)
        inputs = framer.inputs(chunks)
        if stored is None:
            readable = ranker.readable(length, call.call.count_tokens)
            self._reading.observe(readable * self._threads, time.perf_counter() - started_s)
            self._reservations.read(call.reservation, readable)
        ranker.density.observe(length - read.characters_cut, len(read))
        spans = tuple(Span(chunk.start, chunk.end) for chunk in chunks)
        cut = _cut(read, length)
        document = PendingDocument(call, index, spans, cut, [None] * len(chunks), len(chunks))
        return document, [
            QueuedInput(each.tokens, call, each, document, chunk) for chunk, each in enumerate(inputs)
        ]


def _cut(read: TokenizedText, characters: int) -> Cut:
    """Estimate the tokens that were not counted: as dense as those that were read, and at least one."""
    tokens = read.tokens_cut
    if tokens is None:
        tokens = max(1, round(read.characters_cut * len(read) / max(1, characters - read.characters_cut)))
    return Cut(read.characters_cut, tokens)


def _stored(call: ActiveCall, source: Source, index: int) -> EncodedDocument:
    """Read the encodings of a document's chunks, as many as the call wants of them."""
    place, limit, chunking = call.call.documents[index].place, call.call.max_chunks, call.ranker.spec.chunking
    assert source.encodings is not None, "its encodings are kept"
    whole = source.encodings.read(place)
    if limit is None or len(whole.spans) <= limit:
        return whole
    assert source.tokens is not None, "what the call's limit cuts is known of tokens"
    cut = source.tokens.read(place, readable_tokens(chunking, limit))
    spans = whole.spans[:limit]
    return EncodedDocument(Features(whole.features.vectors[:limit]), spans, _cut(cut, 0))


def _slices(call: ActiveCall) -> Iterator[list[int]]:
    """Cut the documents into runs of about SLICE_CHARACTERS; what is encoded already has none to read."""
    current: list[int] = []
    characters = 0
    for index, document in enumerate(call.call.documents):
        current.append(index)
        if index not in call.known.held and index not in call.known.stored:
            reads_tokens = document.source(call.ranker.name).tokens is not None
            characters += document.characters // (STORED_FASTER if reads_tokens else 1)
        if characters >= SLICE_CHARACTERS:
            yield current
            current, characters = [], 0
    if current:
        yield current
