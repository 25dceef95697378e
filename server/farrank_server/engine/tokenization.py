"""Text becomes encoder inputs, off the event loop and in parallel."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from farrank_rankers.errors import ReadingStopped
from farrank_rankers.tokens import TokenizedText
from farrank_server.engine.admission.estimates import Speed
from farrank_server.engine.admission.reservations import Reservations
from farrank_server.engine.call import ActiveCall, Part, PendingDocument, ReadTally, Span
from farrank_server.engine.rankers.document_cache import EncodedDocument
from farrank_server.engine.rankers.loaded import LoadedRanker
from farrank_server.errors import InvalidArgument

# A call's documents are read in slices of about this many characters (some 5 ms of a core): the device
# starts on the first while the next is read, and calls take turns.
SLICE_CHARACTERS = 16_384

T = TypeVar("T")
Submit = Callable[[LoadedRanker, ActiveCall, Sequence[Part], Sequence[PendingDocument]], None]


class TokenizerPool:
    """The tokenizer pool. `submit` hands finished slices to the worker, from the pool's threads."""

    def __init__(self, threads: int, reading: Speed, reservations: Reservations, submit: Submit) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="farrank-reader")
        self._reading = reading
        self._reservations = reservations
        self._submit = submit

    def close(self) -> None:
        """End the threads; slices not begun are dropped."""
        self._pool.shutdown(cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Run something short on the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def prepare(
        self,
        lane: LoadedRanker,
        job: ActiveCall,
        cached: Mapping[int, EncodedDocument],
        keys: Sequence[bytes] | None,
    ) -> None:
        """Read, split and submit all documents of a job.

        Raises: InvalidArgument if the query holds no token; ReadingStopped if the job ended meanwhile.
        """
        started_ns = time.perf_counter_ns()
        loop = asyncio.get_running_loop()
        slices = iter(list(_slices(job.call.texts, cached)))
        query: list[TokenizedText] = []

        def read(indices: Sequence[int]) -> ReadTally:
            brought = ReadTally() if query else self._read_query(lane, job, query)
            return brought + self._read_slice(lane, job, query[0], indices, cached, keys)

        async def read_on() -> None:
            for indices in slices:
                tally = await loop.run_in_executor(self._pool, read, indices)
                job.read += tally

        # The first slice brings the query; the others then go side by side, a few at a time.
        job.read += await loop.run_in_executor(self._pool, read, next(slices))
        if len(job.call.texts) > 1:
            await asyncio.gather(*(read_on() for _ in range(self._threads)))
        job.tokenization_ns = time.perf_counter_ns() - started_ns

    def _read_query(self, lane: LoadedRanker, job: ActiveCall, query: list[TokenizedText]) -> ReadTally:
        query.append(lane.reader.read_query(job.call.query))
        if len(query[0]) == 0:
            raise InvalidArgument(
                f"query: holds no token that ranker {lane.name} can read; it needs at least 1"
            )
        cut = query[0].tokens_cut or 0
        if not lane.is_dual:
            return ReadTally(query_tokens_cut=cut)
        part = Part(job, lane.reader.query_input(query[0]))
        self._submit(lane, job, [part], [])
        return ReadTally(query_tokens_cut=cut, tokens=part.input.tokens)

    def _read_slice(
        self,
        lane: LoadedRanker,
        job: ActiveCall,
        query: TokenizedText,
        indices: Sequence[int],
        cached: Mapping[int, EncodedDocument],
        keys: Sequence[bytes] | None,
    ) -> ReadTally:
        parts: list[Part] = []
        documents: list[PendingDocument] = []
        for index in indices:
            if job.finished.done():
                raise ReadingStopped("the job ended while its documents were read")
            if index in cached:
                documents.append(_from_cache(index, cached[index]))
                continue
            document, its_parts = self._read_document(lane, job, query, index)
            document.cache_key = keys[index] if keys is not None else None
            documents.append(document)
            parts.extend(its_parts)
        self._submit(lane, job, parts, documents)
        return ReadTally(
            tokens=sum(part.input.tokens for part in parts),
            chunks=sum(len(document.spans) for document in documents),
            cached_chunks=sum(len(document.spans) for document in documents if document.whole is not None),
        )

    def _read_document(
        self, lane: LoadedRanker, job: ActiveCall, query: TokenizedText, index: int
    ) -> tuple[PendingDocument, list[Part]]:
        text, limit = job.call.texts[index], job.call.max_chunks
        started_s = time.perf_counter()
        read = lane.reader.read_document(text, limit, should_stop=job.finished.done, count_tokens=True)
        chunks = lane.reader.split(read, limit)
        with_query = None if lane.is_dual else query
        inputs = [lane.reader.chunk_input(with_query, chunk) for chunk in chunks]
        self._reading.observe(len(text) * self._threads, time.perf_counter() - started_s)
        self._reservations.read(job.reservation, len(text))
        lane.density.observe(len(text) - read.characters_cut, len(read))
        spans = tuple(Span(chunk.start, chunk.end) for chunk in chunks)
        document = PendingDocument(index, spans, read.tokens_cut or 0, [None] * len(chunks), len(chunks))
        return document, [Part(job, input_, document, chunk) for chunk, input_ in enumerate(inputs)]


def _from_cache(index: int, encoded: EncodedDocument) -> PendingDocument:
    return PendingDocument(index, encoded.spans, encoded.tokens_cut, [], 0, whole=encoded.features)


def _slices(texts: Sequence[str], cached: Mapping[int, EncodedDocument]) -> Iterator[list[int]]:
    """Cut the documents into runs of about SLICE_CHARACTERS to read."""
    current: list[int] = []
    characters = 0
    for index, text in enumerate(texts):
        current.append(index)
        characters += 0 if index in cached else len(text)
        if characters >= SLICE_CHARACTERS:
            yield current
            current, characters = [], 0
    if current:
        yield current
