"""Build a Lucene index from documents or change one, whole or not at all, in a process of its own."""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from farrank_server.indexing.document import CollectionError, Document, Vectors, batch_frame
from farrank_server.indexing.index_folder import Scratch, check_place, link_index, scratch_beside
from farrank_server.indexing.index_process import IndexingError, IndexProcess
from farrank_server.stores.index_manifest import IndexManifest, VectorsManifest, read_manifest
from farrank_trec.ranking_fields import RankingFields

_log = logging.getLogger(__name__)
_BATCH_DOCUMENTS = 64
_BATCH_CHARACTERS = 2**20
# Seconds of a core's encoding, in which no progress is told.
_ENCODED_CHARACTERS = 2**17
# What an interruption costs at most.
SAVE_EVERY_S = 60.0
_NAMED = 5

_NO_VECTORS: Vectors = np.zeros((0, 0), dtype=np.float32)


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
    # Where a link stands, what it points to is the index: exchanged for a folder, the link would be gone.
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with scratch_beside(out) as scratch:
        check_place(out, overwrite=overwrite)
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
    index = index.resolve()
    if not index.parent.is_dir():
        raise FileNotFoundError(f"{index} holds no index that Farrank made")
    with scratch_beside(index) as scratch:
        old = _changeable(index, [store.key for store in options.stores], adding=documents is not None)
        changed = replace(old, generation=old.generation + 1, created_by=_created_by())
        change = _Change(index, old, tuple(dict.fromkeys(delete)), replacing)
        writing = _Writing(scratch, options, changed, change)

        def begin() -> None:
            scratch.begin()
            link_index(index, scratch.new)

        with writing.opened(begin):
            writing.delete()
            writing.write(documents or ())
            if not writing.manifest.documents:
                raise CollectionError(f"{index} would hold no document any more")
            writing.finish(merge=False)
        if read_manifest(index) != old:
            raise FileExistsError(f"{index} was changed meanwhile; it stays as it is")
        scratch.take_place(index)
    return writing.manifest.documents


def _changeable(index: Path, keys: Sequence[str], *, adding: bool) -> IndexManifest:
    """Read the manifest of an index that may be changed, with stores of these keys.

    Raises: as `change_index`.
    """
    old = read_manifest(index)
    if old is None:
        raise FileNotFoundError(f"{index} holds no index that Farrank made")
    if not old.id:
        raise CollectionError(f"{index} was made by {old.created_by}, which cannot be changed; index anew")
    if (adding or keys) and sorted(keys) != sorted(old.stores):
        raise CollectionError(
            f"{index} keeps {_listed(old.stores)} of each document, and {_listed(keys)} would be written"
        )
    return old


@dataclass(frozen=True, slots=True)
class _Change:
    """What is done to an index beside adding documents; `before` is what it holds until then."""

    index: Path
    before: IndexManifest
    deleted: tuple[str, ...]
    replacing: bool

    def said(self) -> dict[str, Any]:
        """Write it down, so that another change is told from it."""
        deleted = blake2b(json.dumps(sorted(self.deleted)).encode(), digest_size=16)
        return {
            "of": f"{self.before.id}/{self.before.generation}",
            "deleted": deleted.hexdigest(),
            "replacing": self.replacing,
        }


@dataclass(slots=True)
class _Writing:
    """One index as it is written. `manifest` is what it holds so far; a new one has no `change`."""

    scratch: Scratch
    options: Options
    manifest: IndexManifest
    change: _Change | None = None
    _chunks: int = 0
    _read: int = 0
    _deleted: bool = False
    _taken_out: Set[str] = frozenset()
    _digest: "blake2b" = field(default_factory=lambda: blake2b(digest_size=16))
    _process: IndexProcess | None = None
    _stores: dict[str, StoreWriter] = field(default_factory=dict)
    _resumed: Mapping[str, Any] | None = None

    @contextmanager
    def opened(self, begin: Callable[[], None]) -> Iterator[None]:
        """Open the process and the stores, on what was saved or else on what `begin` prepares."""
        saved = self.scratch.saved()
        if saved is not None and not self.options.resume:
            _log.warning("what an interrupted build left is taken away; --resume would have gone on with it")
        state = saved if self.options.resume else None
        if state is None:
            begin()
            self._chunks = self.manifest.vectors.places if self.manifest.vectors else 0
        else:
            self._check_same_change(state.get("change"))
            self.manifest = IndexManifest.of(state["manifest"])
            self._chunks, self._deleted, self._resumed = state["chunks"], True, state
        states = state["stores"] if state else {}
        if state is not None and states.keys() != {store.key for store in self.options.stores}:
            raise CollectionError(
                f"{_listed(states)} were kept until the interruption; name the same to resume"
            )
        self._taken_out = frozenset(self.change.deleted) if self.change else frozenset()
        place, before = self.manifest.places, self.change.index if self.change else None
        try:
            for store in self.options.stores:
                self._stores[store.key] = store.open(self.scratch.new, place, states.get(store.key))
            stores = {*self.manifest.stores, *self._stores}
            self.manifest = replace(self.manifest, stores=tuple(sorted(stores)))
            with IndexProcess.running(self.scratch.new, place, self._chunks, before) as self._process:
                yield
        finally:
            for writer in self._stores.values():
                writer.close()

    def delete(self) -> None:
        """Take out what the change deletes. Raises: CollectionError naming what is not there."""
        if self._deleted or self.change is None or not self.change.deleted:
            return
        wanted = self.change.deleted
        present = set(self._ask({"present": wanted})["present"])
        if unknown := [each for each in wanted if each not in present]:
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
            vectors = replace(self.manifest.vectors, chunks=held["chunks"], places=self._chunks)
            self.manifest = replace(self.manifest, vectors=vectors)
        before = self.change.before.skipped_blank_documents if self.change else 0
        if blank := self.manifest.skipped_blank_documents - before:
            _log.warning("left out %d document%s without text", blank, "" if blank == 1 else "s")
        self.manifest.write(self.scratch.new)

    def _add(self, batch: list[Document]) -> None:
        self._check_known(batch)
        texts = [each.text for each in batch]
        try:
            encoded = [store.add(texts) for store in self._stores.values()]
        except ValueError as error:
            first_id, last_id = batch[0].doc_id, batch[-1].doc_id
            raise CollectionError(f"documents {first_id!r} to {last_id!r}: {error}") from error
        vectors = self._vectors(batch, encoded)
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
        if self.change is None:
            return
        asked = [each.doc_id for each in batch if each.doc_id not in self._taken_out]
        present = self._ask({"present": asked})["present"]
        if not present:
            return
        if not self.change.replacing:
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
            raise CollectionError(
                f"the documents need a 'vector' of {expected.width} numbers, as those of the index have it"
                if expected
                else "the documents must have no 'vector', as those of the index have none"
            )
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
                "change": self.change.said() if self.change else None,
                "manifest": asdict(self.manifest),
                "chunks": self._chunks,
                "read": self._read,
                "digest": self._digest.hexdigest(),
                "stores": stores,
            }
        )

    def _check_same_change(self, was: Mapping[str, Any] | None) -> None:
        """Raise CollectionError if what was interrupted did something else than what is asked for now."""
        now = self.change.said() if self.change else None
        if was == now:
            return
        if was is None or now is None or was["of"] != now["of"]:
            raise CollectionError("what is there to resume is a change of another index; leave out --resume")
        if was["deleted"] != now["deleted"]:
            raise CollectionError(
                "other documents were to be deleted before the interruption; delete the same, or leave out "
                "--resume to begin the change anew"
            )
        raise CollectionError(
            f"before the interruption documents were {'' if was['replacing'] else 'not '}to be replaced; "
            "leave out --resume to begin the change anew"
        )

    def _ask(self, header: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        return self._process.ask(header)


def _created_by() -> str:
    return f"farrank {version('farrank')}"


def _named(doc_ids: Sequence[str]) -> str:
    """Name the first few."""
    more = f" and {len(doc_ids) - _NAMED:,} more" if len(doc_ids) > _NAMED else ""
    return ", ".join(map(repr, doc_ids[:_NAMED])) + more


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys)) or "nothing"
