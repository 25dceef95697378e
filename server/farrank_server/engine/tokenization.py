"""Text becomes encoder inputs, off the event loop and in parallel."""

import asyncio
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from farrank_rankers.errors import ReadingStopped
from farrank_rankers.tokens import TokenizedText
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, Cut, Document, PendingDocument, QueuedInput, Span, Tally
from farrank_server.errors import InvalidArgument

# A call's documents are read in slices of about this many characters (some 5 ms of a core): the device
# starts on the first while the next is read, and calls take turns.
SLICE_CHARACTERS = 16_384

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
        slices = iter(list(_slices(call.call.documents, call.known.held)))
        query: list[TokenizedText] = []

        def read(indices: Sequence[int]) -> Tally:
            brought = Tally() if query else self._read_query(call, query)
            return brought + self._read_slice(call, query[0], indices)

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

    def _read_query(self, call: ActiveCall, query: list[TokenizedText]) -> Tally:
        query.append(call.ranker.reader.read_query(call.call.query))
        if len(query[0]) == 0:
            raise InvalidArgument(
                f"query: holds no token that ranker {call.ranker.name} can read; it needs at least 1"
            )
        brought = Tally(query_tokens_cut=query[0].tokens_cut or 0)
        if call.ranker.is_dual:
            encoder_input = call.ranker.reader.query_input(query[0])
            brought.tokens = encoder_input.tokens
            self._submit(call, [QueuedInput(encoder_input.tokens, call, encoder_input)], [])
        return brought

    def _read_slice(self, call: ActiveCall, query: TokenizedText, indices: Sequence[int]) -> Tally:
        inputs: list[QueuedInput] = []
        documents: list[PendingDocument] = []
        brought = Tally()
        for index in indices:
            if not call.is_wanted:
                raise ReadingStopped("the call ended while its documents were read")
            held = call.known.held.get(index)
            if held is None:
                document, its_inputs = self._read_document(call, query, index)
                inputs += its_inputs
            else:
                document = PendingDocument(call, index, held.spans, held.cut, [], 0, whole=held.features)
                brought.cached_chunks += len(held.spans)
            documents.append(document)
            brought.chunks += len(document.spans)
        self._submit(call, inputs, documents)
        brought.tokens = sum(each.tokens for each in inputs)
        return brought

    def _read_document(
        self, call: ActiveCall, query: TokenizedText, index: int
    ) -> tuple[PendingDocument, list[QueuedInput]]:
        ranker, text, limit = call.ranker, call.call.documents[index].text, call.call.max_chunks
        assert text is not None, "a document without a text needs stores that have it"
        started_s = time.perf_counter()
        read = ranker.reader.read_document(
            text, limit, should_stop=call.finished.done, count_tokens=call.call.count_tokens
        )
        chunks = ranker.reader.split(read, limit)
        with_query = None if ranker.is_dual else query
        inputs = [ranker.reader.chunk_input(with_query, chunk) for chunk in chunks]
        readable = ranker.readable(len(text), call.call.count_tokens)
        self._reading.observe(readable * self._threads, time.perf_counter() - started_s)
        self._reservations.read(call.reservation, readable)
        ranker.density.observe(len(text) - read.characters_cut, len(read))
        spans = tuple(Span(chunk.start, chunk.end) for chunk in chunks)
        cut = _cut(read, len(text))
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


def _slices(its: Sequence[Document], cached: Container[int]) -> Iterator[list[int]]:
    """Cut the documents into runs of about SLICE_CHARACTERS to read."""
    current: list[int] = []
    characters = 0
    for index, document in enumerate(its):
        current.append(index)
        characters += 0 if index in cached else document.characters
        if characters >= SLICE_CHARACTERS:
            yield current
            current, characters = [], 0
    if current:
        yield current
