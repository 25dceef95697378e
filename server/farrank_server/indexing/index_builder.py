"""Build a Lucene index from documents or change one, whole or not at all, in a process of its own."""

import asyncio
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from farrank_server.indexing.index_child import batch_frame
from farrank_server.indexing.index_folder import Scratch, check_place, link_index, scratch_beside
from farrank_server.java_process.process import JavaProcess, ProcessEnded
from farrank_server.stores.index_manifest import IndexManifest, VectorsManifest, read_manifest
from farrank_trec.ranking_fields import NO_FIELDS, RankingFields

_log = logging.getLogger(__name__)
_HEAP_MIB = 1536
_BATCH_DOCUMENTS = 64
_BATCH_CHARACTERS = 2**20
# Seconds of a core's encoding, in which no progress is told.
_ENCODED_CHARACTERS = 2**17
# What an interruption costs at most.
SAVE_EVERY_S = 60.0
_NAMED = 5

Vectors = NDArray[np.float32]
_NO_VECTORS: Vectors = np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Document:
    """One document to index; its text comes back from the index byte for byte."""

    doc_id: str
    text: str
    ranking: RankingFields = NO_FIELDS

    def digested(self) -> bytes:
        """Write down all of it, so that another document has other bytes."""
        impacts = None if self.ranking.impacts is None else dict(self.ranking.impacts)
        whole = (self.doc_id, self.text, self.ranking.expansions, impacts, self.ranking.vector)
        return json.dumps(whole).encode()


class CollectionError(ValueError):
    """The documents cannot be indexed as they are: says what is wrong with them."""


class IndexingError(RuntimeError):
    """Lucene could not write the index: says why."""


class StoreWriter(Protocol):
    """Writes what is kept of each document beside an index, in the order of their places."""

    def add(self, texts: Sequence[str]) -> Sequence[Vectors] | None:
        """Take the next documents; an encoder gives their chunks' vectors. Shapes: -> D times (C, H)."""
        ...

    def flush(self) -> Mapping[str, Any]:
        """Have all of it on the disk, and say what is needed to go on from here."""
        ...

    def finish(self, index_id: str) -> None:
        """Write the store whole, for the index of this id."""
        ...

    def close(self) -> None:
        """Let go of its files and threads, finished or not."""
        ...


class Store(Protocol):
    """Something that is kept beside an index. `key` is its folder there, such as `tokens/0f3a`.

    `vectors_version` is the version of the ranker whose vectors its writer gives, None if it gives none.
    """

    @property
    def key(self) -> str:
        """Its folder in the index's."""
        ...

    @property
    def vectors_version(self) -> str | None:
        """What encodes, if anything does."""
        ...

    def open(self, index: Path, place: int, state: Mapping[str, Any] | None) -> StoreWriter:
        """Open it in an index's folder, to write from a place on; `state` is what the last `flush` gave.

        Without a state a new part is begun, beside those that are there.
        """
        ...


@dataclass(slots=True)
class Options:
    """How an index is written. `progress` hears the number of documents read so far.

    `on_blank` hears of each document in which no query could find anything; it is left out. With `resume` an
    interrupted writing of the same documents goes on.
    """

    stores: Sequence[Store] = ()
    resume: bool = False
    progress: Callable[[int], None] = lambda documents: None
    on_blank: Callable[[Document], None] = lambda document: None
    save_every_s: float = SAVE_EVERY_S


def build_index(
    documents: Iterable[Document], out: Path, options: Options | None = None, *, overwrite: bool = False
) -> int:
    """Index the documents into the folder `out` and return how many it holds.

    Blank documents are left out, and the log and the index's manifest say how many. The index is built beside
    `out` and renamed at the end: a failure or Ctrl-C leaves `out` as it was. What was saved until then is
    kept for `resume`. `overwrite` replaces an index that Farrank made, and nothing else.

    Raises: FileExistsError, CollectionError (also for no documents and for a doc_id used twice),
    IndexingError, ConfigError if pyserini or Java is missing.
    """
    options = options or Options()
    out = out.absolute()
    check_place(out, overwrite=overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    with scratch_beside(out) as scratch:
        manifest = IndexManifest(0, 0, _created_by(), id=uuid.uuid4().hex)
        writing = _Writing(scratch, options, manifest)
        with writing.opened(scratch.begin):
            writing.write(documents)
            if not writing.manifest.documents:
                raise CollectionError("there is no document to index")
            writing.finish(merge=True)
        check_place(out, overwrite=overwrite)  # building takes a while, and others may have come first
        scratch.take_place(out)
    return writing.manifest.documents


def change_index(
    index: Path,
    documents: Iterable[Document] | None = None,
    delete: Sequence[str] = (),
    options: Options | None = None,
    *,
    replacing: bool = False,
) -> int:
    """Delete documents from an index and add others, all of it at once; return how many it holds then.

    The changed index is prepared beside the old one, of its files, and takes its place at the end: whoever
    opens `index` finds the old one or the new one. What the index keeps of each document, it needs of the new
    ones. With `replacing`, a document whose id is there takes the other's place.

    Raises: as `build_index`; FileNotFoundError if there is no index; CollectionError if an id is to be
    deleted that is not there, or one is added that is.
    """
    options = options or Options()
    index = index.absolute()
    old = read_manifest(index)
    if old is None:
        raise FileNotFoundError(f"{index} holds no index that Farrank made")
    if not old.id:
        raise CollectionError(f"{index} was made by {old.created_by}, which cannot be changed; index anew")
    keys = [store.key for store in options.stores]
    if documents is not None and sorted(keys) != sorted(old.stores):
        raise CollectionError(
            f"{index} keeps {_listed(old.stores)} of each document, and {_listed(keys)} would be written"
        )
    with scratch_beside(index) as scratch:
        changed = replace(old, generation=old.generation + 1, created_by=_created_by())
        writing = _Writing(scratch, options, changed, before=old, replacing=replacing)

        def begin() -> None:
            scratch.begin()
            link_index(index, scratch.new)

        with writing.opened(begin):
            writing.delete(delete)
            writing.write(documents or ())
            if not writing.manifest.documents:
                raise CollectionError(f"{index} would hold no document any more")
            writing.finish(merge=False)
        if read_manifest(index) != old:
            raise FileExistsError(f"{index} was changed meanwhile; it stays as it is")
        scratch.take_place(index)
    return writing.manifest.documents


@dataclass(slots=True)
class _Writing:
    """One index as it is written. `manifest` is what it holds so far, `before` what it was."""

    scratch: Scratch
    options: Options
    manifest: IndexManifest
    before: IndexManifest | None = None
    replacing: bool = False
    _chunks: int = 0
    _read: int = 0
    _deleted: bool = False
    _digest: "blake2b" = field(default_factory=lambda: blake2b(digest_size=16))
    _process: "_IndexProcess | None" = None
    _stores: dict[str, StoreWriter] = field(default_factory=dict)
    _resumed: Mapping[str, Any] | None = None

    @contextmanager
    def opened(self, begin: Callable[[], None]) -> Iterator[None]:
        """Open the process and the stores, on what was saved or else on what `begin` prepares."""
        saved = self.scratch.saved()
        if saved is not None and not self.options.resume:
            _log.warning("what an interrupted build left is taken away; --resume would have gone on with it")
        state = saved if self.options.resume else None
        if state is not None and state["before"] != self._before_key():
            raise CollectionError("what is there to resume is a change of another index; leave out --resume")
        if state is None:
            begin()
            self._chunks = self.manifest.vectors.chunks if self.manifest.vectors else 0
        else:
            self.manifest = IndexManifest.of(state["manifest"])
            self._chunks, self._deleted, self._resumed = state["chunks"], True, state
        states = state["stores"] if state else {}
        if state is not None and states.keys() != {store.key for store in self.options.stores}:
            raise CollectionError(
                f"{_listed(states)} were kept until the interruption; name the same to resume"
            )
        for store in self.options.stores:
            place = self.manifest.places
            self._stores[store.key] = store.open(self.scratch.new, place, states.get(store.key))
        self.manifest = replace(self.manifest, stores=tuple(sorted({*self.manifest.stores, *self._stores})))
        try:
            with _IndexProcess.running(self.scratch.new, self.manifest.places, self._chunks) as self._process:
                yield
        finally:
            for writer in self._stores.values():
                writer.close()

    def delete(self, doc_ids: Sequence[str]) -> None:
        """Take documents out. Raises: CollectionError naming those that are not there."""
        if self._deleted or not doc_ids:
            return
        wanted = list(dict.fromkeys(doc_ids))
        present = self._ask({"present": wanted})["present"]
        if unknown := [each for each in wanted if each not in set(present)]:
            raise CollectionError(f"not in the index, so that nothing is deleted: {_named(unknown)}")
        self._ask({"delete": wanted})
        self.manifest = replace(self.manifest, documents=self.manifest.documents - len(wanted))

    def write(self, documents: Iterable[Document]) -> None:
        """Index the documents, without those that were indexed before an interruption.

        Raises: CollectionError if these were others, too.
        """
        saved_s = time.monotonic()
        for batch, read, blank in self._batches(documents):
            if batch:
                self._add(batch)
            self._read = read
            self.manifest = replace(
                self.manifest, skipped_blank_documents=self.manifest.skipped_blank_documents + blank
            )
            self.options.progress(read)
            if time.monotonic() - saved_s >= self.options.save_every_s:
                self._save()
                saved_s = time.monotonic()

    def finish(self, *, merge: bool) -> None:
        """Write the index whole. Raises: IndexingError if Lucene holds another number of documents."""
        assert self._process is not None
        for store in self._stores.values():
            store.finish(self.manifest.id)
        held = self._process.finish(merge=merge)
        if held["documents"] != self.manifest.documents:
            raise IndexingError(
                f"Lucene holds {held['documents']} of {self.manifest.documents} documents:\n"
                f"{self._process.last_lines}"
            )
        if self.manifest.vectors is not None:
            vectors = replace(self.manifest.vectors, chunks=self._chunks)
            self.manifest = replace(self.manifest, vectors=vectors)
        if blank := self.manifest.skipped_blank_documents:
            _log.warning("left out %d document%s without text", blank, "" if blank == 1 else "s")
        self.manifest.write(self.scratch.new)

    def _add(self, batch: list[Document]) -> None:
        self._check_known(batch)
        vectors = self._vectors(
            batch, [store.add([each.text for each in batch]) for store in self._stores.values()]
        )
        first = batch[0].ranking
        if not self.manifest.places:
            widths = [each.shape[1] for each in vectors if len(each)]
            made_by = [store.vectors_version for store in self.options.stores if store.vectors_version]
            self.manifest = replace(
                self.manifest,
                expanded=first.expansions is not None,
                impacts=first.impacts is not None,
                vectors=VectorsManifest(0, widths[0], made_by[0] if made_by else None) if widths else None,
            )
        self._check_alike(first)
        assert self._process is not None
        self._process.send(*batch_frame(batch, vectors))
        self._chunks += sum(map(len, vectors))
        count = len(batch)
        self.manifest = replace(
            self.manifest, documents=self.manifest.documents + count, places=self.manifest.places + count
        )

    def _check_known(self, batch: Sequence[Document]) -> None:
        """Refuse documents that the index has already, or take the old ones out."""
        if self.before is None:
            return
        present = self._ask({"present": [each.doc_id for each in batch]})["present"]
        if not present:
            return
        if not self.replacing:
            raise CollectionError(f"in the index already: {_named(present)}")
        self._ask({"delete": present})
        self.manifest = replace(self.manifest, documents=self.manifest.documents - len(present))

    def _check_alike(self, ranking: RankingFields) -> None:
        """Hold a document to what all others have: the reader of a collection has compared its lines."""
        has = {"expansions": ranking.expansions is not None, "impacts": ranking.impacts is not None}
        needs = {"expansions": self.manifest.expanded, "impacts": self.manifest.impacts}
        for name, needed in needs.items():
            if has[name] != needed:
                raise CollectionError(
                    f"the documents {'need' if needed else 'must have no'} {name!r}, as those of the index "
                    f"{'have them' if needed else 'have none'}"
                )

    def _vectors(
        self, batch: Sequence[Document], encoded: Sequence[Sequence[Vectors] | None]
    ) -> list[Vectors]:
        """Choose the vectors of each document's chunks: an encoder's, or the one that its line brings."""
        made = [each for each in encoded if each is not None]
        brought = [each.ranking.vector for each in batch]
        if made and any(each is not None for each in brought):
            raise CollectionError(
                "documents bring a 'vector', and a ranker is to encode them: one of both only"
            )
        if made:
            vectors = list(made[0])
        else:
            vectors = [
                _NO_VECTORS if each is None else np.array([each], dtype=np.float32) for each in brought
            ]
        expected = self.manifest.vectors
        widths = {each.shape[1] for each in vectors if len(each)}
        if self.manifest.places and widths != ({expected.width} if expected else set()):
            needed = f"vectors of {expected.width} numbers" if expected else "no vectors"
            raise CollectionError(f"the documents need {needed}, as those of the index have")
        return vectors

    def _batches(self, documents: Iterable[Document]) -> Iterator[tuple[list[Document], int, int]]:
        """Give batches of what is not indexed yet, each with the number of documents read and of blank ones.

        What was indexed before an interruption is read again: it must be the same.
        """
        already = self._resumed["read"] if self._resumed else 0
        encodes = any(store.vectors_version for store in self.options.stores)
        most_characters = _ENCODED_CHARACTERS if encodes else _BATCH_CHARACTERS
        seen: set[str] = set()
        batch: list[Document] = []
        characters = blank = number = 0
        for number, document in enumerate(documents, start=1):
            if document.doc_id in seen:
                raise CollectionError(f"the doc_id {document.doc_id!r} is used twice")
            seen.add(document.doc_id)
            self._digest.update(document.digested())
            # Anserini's own test, which is Java's: nothing but spaces and control characters is no text.
            is_blank = all(char <= " " for char in document.text)
            if is_blank:
                self.options.on_blank(document)
            if number <= already:
                self._check_same(number)
                continue
            if is_blank:
                blank += 1
                continue
            batch.append(document)
            characters += len(document.text)
            if len(batch) >= _BATCH_DOCUMENTS or characters >= most_characters:
                yield batch, number, blank
                batch, characters, blank = [], 0, 0
        if number < already:
            raise CollectionError(
                f"there are {number:,} documents; before the interruption there were {already:,} at least"
            )
        if batch or blank:
            yield batch, number, blank

    def _check_same(self, number: int) -> None:
        assert self._resumed is not None
        if number == self._resumed["read"] and self._digest.hexdigest() != self._resumed["digest"]:
            raise CollectionError(
                f"the first {number:,} documents are others than before the interruption; "
                "leave out --resume to index them anew"
            )

    def _save(self) -> None:
        """Keep what is written so far, whatever happens next: Lucene's part first, it may hold more."""
        self._ask({"commit": True})
        stores = {key: dict(store.flush()) for key, store in self._stores.items()}
        self.scratch.save(
            {
                "before": self._before_key(),
                "manifest": asdict(self.manifest),
                "chunks": self._chunks,
                "read": self._read,
                "digest": self._digest.hexdigest(),
                "stores": stores,
            }
        )

    def _before_key(self) -> str:
        return f"{self.before.id}/{self.before.generation}" if self.before else ""

    def _ask(self, header: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        return self._process.ask(header)


class _IndexProcess:
    """The indexing process, spoken to from outside any event loop.

    One frame is on its way while the next is made: reading and indexing overlap. The private event loop runs
    only while something is awaited, so that Ctrl-C stops the reading at once.
    """

    def __init__(self, loop: asyncio.Runner) -> None:
        self._loop = loop
        self._process = loop.run(JavaProcess.start("farrank_server.indexing.index_child", "indexing process"))
        self._unanswered = 0

    @classmethod
    @contextmanager
    def running(cls, index: Path, places: int, chunks: int) -> "Iterator[_IndexProcess]":
        """Run one that writes into a folder, until the block is left."""
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as loop:
            made = cls(loop)
            try:
                threads = min(os.cpu_count() or 1, 8)
                setup = {"path": str(index), "threads": threads, "heap_mib": _HEAP_MIB}
                made.send({**setup, "places": places, "chunks": chunks}, ())
                yield made
            finally:
                loop.run(made._process.kill())

    @property
    def last_lines(self) -> str:
        """The end of what the process printed."""
        return self._process.last_lines

    def send(self, header: Mapping[str, Any], texts: Sequence[str]) -> None:
        """Send a frame, and receive the answer to the one before. Raises: IndexingError."""
        self._loop.run(self._send(header, texts))

    def ask(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Send a frame, and receive its answer. Raises: IndexingError."""
        self.send(header, ())
        return self._loop.run(self._answer())

    def finish(self, *, merge: bool) -> dict[str, Any]:
        """Have the index written whole; say how many documents and chunks it holds."""
        return self.ask({"finish": True, "merge": merge})

    async def _send(self, header: Mapping[str, Any], texts: Sequence[str]) -> None:
        try:
            await self._process.send(header, texts)
        except ProcessEnded:
            raise IndexingError(await self._process.last_words()) from None
        self._unanswered += 1
        while self._unanswered > 1:
            await self._answer()

    async def _answer(self) -> dict[str, Any]:
        try:
            header, _ = await self._process.receive()
        except ProcessEnded:
            raise IndexingError(await self._process.last_words()) from None
        self._unanswered -= 1
        if "failed" in header:
            raise IndexingError(f"Lucene cannot write the index: {header['failed']}")
        return header


def _created_by() -> str:
    return f"farrank {version('farrank')}"


def _named(doc_ids: Sequence[str]) -> str:
    """Name the first few."""
    more = f" and {len(doc_ids) - _NAMED:,} more" if len(doc_ids) > _NAMED else ""
    return ", ".join(map(repr, doc_ids[:_NAMED])) + more


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys)) or "nothing"
