"""The common part of all kinds that search a Lucene index."""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_calls.errors import Internal
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_first_stage import Candidate, FirstStage, IndexDescription
from farrank_first_stage.kinds import StageContext
from farrank_lucene.jvm import child_environment
from farrank_settings.errors import ConfigError

if TYPE_CHECKING:
    from farrank_indexes.index_stores import IndexStores
    from farrank_indexes.stored_documents import StoredTexts


class LuceneStage(FirstStage):
    """One index in the search process. A kind adds its way to rank and its form of a query (`query_of`)."""

    def __init__(
        self, context: StageContext, kind: str, path: Path, ranks: Mapping[str, Any], ranking: str
    ) -> None:
        self._name, self._host, self._kind, self._ranking = context.name, context.lucene, kind, ranking
        self._path, self._key = path, context.key
        self._stores: IndexStores | None = None
        context.lucene.add(context.name, path, ranks)

    async def start(self) -> None:
        """Open the data stored with the index; the host has opened the index itself.

        Raises: ConfigError if they are damaged, or belong to another index.
        """
        try:
            self._stores = await self._host.stores(self._name, self._path)
        except ConfigError as error:
            raise ConfigError(*(f"{self._key}.path: {problem}" for problem in error.problems)) from None

    @property
    def stores(self) -> "IndexStores | None":
        """The data stored with the index."""
        return self._stores

    async def stop(self) -> None:
        """Release the data stored with the index, so that its files are unmapped."""
        self._stores = None

    def describe(self) -> IndexDescription:
        """Describe the index's content."""
        opened = self._host.opened[self._name]
        documents, mean_characters = opened["documents"], opened["mean_characters"]
        return IndexDescription(
            self._name,
            documents,
            self._ranking,
            mean_characters,
            self._kind,
            generation=opened["generation"],
        )

    async def query_of(self, query: str, timeout_s: float, call: CallRecord) -> Mapping[str, Any]:
        """Build the request's query. Its text is plain: Lucene's operators have no meaning in it."""
        return {"query": query}

    async def search(
        self, query: str, k: int, timeout_s: float, *, texts: bool = True, call: CallRecord = NO_CALL
    ) -> list[Candidate]:
        """Return at most `k` candidates, best first, equal scores in the order of doc_id."""
        asked = await self.query_of(query, timeout_s, call)
        stored = self._stores.texts if self._stores is not None and texts else None
        sends = texts and stored is None
        header, found = await self._host.ask(self._name, {**asked, "k": k, "texts": sends}, call)
        places = _places(header["places"]) or [None] * len(header["doc_ids"])
        if stored is not None:
            found = await self._read(stored, header["doc_ids"], places, call)
        read: Iterator[str] = iter(found) if texts else itertools.repeat("")
        hits = zip(header["doc_ids"], header["scores"], places, strict=True)
        return [Candidate(doc_id, next(read), score, place=place) for doc_id, score, place in hits]

    async def texts(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[str]:
        """Return the texts of documents that a search found, in the order given. Raises: Gone."""
        stored = self._stores.texts if self._stores is not None else None
        if stored is not None:
            places = await self.locate(doc_ids, timeout_s, call=call)
            return await self._read(stored, doc_ids, places, call)
        return await self._read_in_lucene(doc_ids, call)

    async def _read_in_lucene(self, doc_ids: Sequence[str], call: CallRecord) -> list[str]:
        _, found = await self._host.ask(self._name, {"read": list(doc_ids)}, call)
        return found

    async def _read(
        self, stored: "StoredTexts", doc_ids: Sequence[str], places: Sequence[int | None], call: CallRecord
    ) -> list[str]:
        """Read texts from the store beside the index.

        Lucene has them, too, in packed blocks behind two conversions and a pipe: for 100 documents of 46
        kB it takes 50 ms, and the rest of a search 2. Documents without a place are read there: the index
        was replaced, or no longer has them. Raises: Gone.
        """
        if None in places:
            return await self._read_in_lucene(doc_ids, call)

        def read() -> list[str]:
            return [stored.read(place).text for place in places if place is not None]

        try:
            return await asyncio.to_thread(read)
        except ConfigError as error:
            raise Internal(f"the texts of index {self._name} are damaged") from error

    async def locate(
        self, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> list[int | None]:
        """Return documents' places, in the order given; None for one that is unknown or has no place."""
        header, _ = await self._host.ask(self._name, {"locate": list(doc_ids)}, call)
        return _places(header["places"])

    async def scores(
        self, query: str, doc_ids: Sequence[str], timeout_s: float, *, call: CallRecord = NO_CALL
    ) -> Mapping[str, float]:
        """Score these documents as `search` would; documents that it would not find are left out."""
        if not doc_ids:
            return {}
        asked = await self.query_of(query, timeout_s, call)
        header, _ = await self._host.ask(self._name, {**asked, "only": list(doc_ids)}, call)
        return dict(zip(header["doc_ids"], header["scores"], strict=True))


def _places(numbers: Iterable[int]) -> list[int | None]:
    return [None if number < 0 else number for number in numbers]


def check_lucene(key: str, path: Path) -> Iterator[str]:
    """Check, without starting anything, that an index is there and its search is installed."""
    try:
        child_environment()
    except ConfigError as error:
        yield from error.problems
    if not any(path.glob("segments_*")):
        yield f"{key}.path: {path}: there is no Lucene index here"
