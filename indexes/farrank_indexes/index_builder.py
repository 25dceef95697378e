"""Builds or changes a Lucene index, completely or not at all, with a separate process for Lucene."""

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

from farrank_indexes.document import CollectionError, IndexDocument, Vectors, batch_frame
from farrank_indexes.index_folder import Scratch, check_place, link_index, open_scratch
from farrank_indexes.index_manifest import IndexManifest, VectorsManifest, read_manifest
from farrank_indexes.index_process import IndexingError, IndexProcess
from farrank_indexes.text_store import FOLDER as TEXTS
from farrank_indexes.text_store import TextStoreBuilder
from farrank_trec.ranking_fields import RankingFields

_log = logging.getLogger(__name__)
_BATCH_DOCUMENTS = 64
_BATCH_CHARACTERS = 2**20
# The most characters of a batch that is encoded. A core needs seconds for it, in which no progress is
# reported.
_ENCODED_CHARACTERS = 2**17
# An interruption loses at most the work of this time.
SAVE_EVERY_S = 60.0
_NAMED = 5

_NO_VECTORS: Vectors = np.zeros((0, 0), dtype=np.float32)


class StoreWriter(Protocol):
    """Writes the data that a store keeps of each document, in the order of their places."""

    def add(self, texts: Sequence[str]) -> Sequence[Vectors] | None:
        """Add the next documents. An encoder returns their chunks' vectors. Shapes: -> D times (C, H)."""
        ...

    def flush(self) -> Mapping[str, Any]:
        """Write everything to disk. Returns the state that is needed to resume from here."""
        ...

    def finish(self, index_id: str) -> None:
        """Complete the store, for the index of this id."""
        ...

    def close(self) -> None:
        """Close its files and threads, whether the store is finished or not."""
        ...


class Store(Protocol):
    """A store that is written with an index. `key` is its folder there, such as `tokens/0f3a`.

    `vectors_version` is the version of the ranker whose vectors its writer returns, or None if it returns
    none.
    """

    @property
    def key(self) -> str:
        """Its folder within the index."""
        ...

    @property
    def vectors_version(self) -> str | None:
        """The version of the ranker that encodes, if one does."""
        ...

    def open(self, index: Path, place: int, state: Mapping[str, Any] | None) -> StoreWriter:
        """Open the store in an index's folder for writing from a place on. `state`: from the last `flush`.

        Without a state it begins a new part, in addition to the existing ones.
        """
        ...


@dataclass(slots=True)
class IndexOptions:
    """How an index is written. `progress` is called with the number of documents read so far.

    If there are `stores`, the texts are stored, too: calls that rank by stores read no text from Lucene.
    `on_blank` is called with each document that has no text to search; such a document is left out. With
    `resume`, an interrupted build of the same documents continues.
    """

    stores: Sequence[Store] = ()
    resume: bool = False
    progress: Callable[[int], None] = lambda documents: None
    on_blank: Callable[[IndexDocument], None] = lambda document: None
    save_every_s: float = SAVE_EVERY_S


def build_index(
    documents: Iterable[IndexDocument],
    out: Path,
    options: IndexOptions | None = None,
    *,
    overwrite: bool = False,
) -> int:
    """Index the documents into the folder `out`. Returns the number of documents in the index.

    Blank documents are left out; the log and the index's manifest say how many. The index is built next to
    `out` and renamed at the end, so that a failure or Ctrl-C leaves `out` as it was. The state saved until
    then is kept for `resume`. `overwrite` only replaces an index that Farrank made.

    Raises: FileExistsError, CollectionError (also for no documents and for a doc_id used twice),
    IndexingError, ConfigError if pyserini or Java is missing.
    """
    options = _with_texts(options or IndexOptions())
    # If `out` is a link, write to its target: exchanging folders would replace the link.
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with open_scratch(out) as scratch:
        check_place(out, overwrite=overwrite)
        manifest = IndexManifest(0, 0, _created_by(), id=uuid.uuid4().hex)
        writing = _IndexWriter(scratch, options, manifest)
        with writing.opened(scratch.begin):
            writing.write(documents)
            if not writing.manifest.documents:
                raise CollectionError("there is no document to index")
            writing.finish(merge=True)
        check_place(out, overwrite=overwrite)  # another build may have come first
        scratch.swap_in(out)
    return writing.manifest.documents


def change_index(
    index: Path,
    documents: Iterable[IndexDocument] | None = None,
    delete: Sequence[str] = (),
    options: IndexOptions | None = None,
    *,
    replacing: bool = False,
) -> int:
    """Delete documents from an index and add others in one step. Returns the number it then holds.

    The changed index is prepared next to the old one, from its files, and takes its place at the end: a
    reader of `index` finds the old index or the new one. The new documents need the same fields and stores as
    those of the index. With `replacing`, a document whose id exists already replaces the other one.

    Raises: as `build_index`; FileNotFoundError if there is no index; CollectionError if an id to delete does
    not exist, or an id to add exists already.
    """
    options = options or IndexOptions()
    index = index.resolve()
    if not index.parent.is_dir():
        raise FileNotFoundError(f"{index} holds no index that Farrank made")
    with open_scratch(index) as scratch:
        old = _changeable(index, [store.key for store in options.stores], adding=documents is not None)
        if TEXTS in old.stores:
            options = _with_texts(options)
        changed = replace(old, generation=old.generation + 1, created_by=_created_by())
        change = _Change(index, old, tuple(dict.fromkeys(delete)), replacing)
        writing = _IndexWriter(scratch, options, changed, change)

        def begin() -> None:
            scratch.begin()
            link_index(index, scratch.new)

        with writing.opened(begin):
            writing.delete()
            writing.write(documents or ())
            if not writing.manifest.documents:
                raise CollectionError(f"{index} would be left without documents")
            writing.finish(merge=False)
        if read_manifest(index) != old:
            raise FileExistsError(f"{index} was changed by another process; this change was not applied")
        scratch.swap_in(index)
    return writing.manifest.documents


def _with_texts(options: IndexOptions) -> IndexOptions:
    """Add the store of texts, if other stores are written."""
    return replace(options, stores=[*options.stores, TextStoreBuilder()]) if options.stores else options


def _changeable(index: Path, keys: Sequence[str], *, adding: bool) -> IndexManifest:
    """Read the manifest of an index, and check that it can be changed with stores of these keys.

    Raises: as `change_index`.
    """
    old = read_manifest(index)
    if old is None:
        raise FileNotFoundError(f"{index} holds no index that Farrank made")
    if not old.id:
        raise CollectionError(
            f"{index} was made by {old.created_by}, which cannot be changed; index the collection again"
        )
    stores = [key for key in old.stores if key != TEXTS]
    if (adding or keys) and sorted(keys) != sorted(stores):
        raise CollectionError(
            f"{index} stores {_listed(stores)} of each document, and {_listed(keys)} would be written"
        )
    return old


@dataclass(frozen=True, slots=True)
class _Change:
    """The change of an existing index in addition to new documents. `before` is its old manifest."""

    index: Path
    before: IndexManifest
    deleted: tuple[str, ...]
    replacing: bool

    def fingerprint(self) -> dict[str, Any]:
        """Describe the change, so that a resumed build can tell it from another change."""
        deleted = blake2b(json.dumps(sorted(self.deleted)).encode(), digest_size=16)
        return {
            "of": f"{self.before.id}/{self.before.generation}",
            "deleted": deleted.hexdigest(),
            "replacing": self.replacing,
        }


@dataclass(slots=True)
class _IndexWriter:
    """One index while it is written. `manifest` describes its content so far; a new index has no `change`."""

    scratch: Scratch
    options: IndexOptions
    manifest: IndexManifest
    change: _Change | None = None
    _chunks: int = 0
    _read: int = 0
    _deleted: bool = False
    _deleted_ids: Set[str] = frozenset()
    _digest: "blake2b" = field(default_factory=lambda: blake2b(digest_size=16))
    _process: IndexProcess | None = None
    _stores: dict[str, StoreWriter] = field(default_factory=dict)
    _resumed: Mapping[str, Any] | None = None

    @contextmanager
    def opened(self, begin: Callable[[], None]) -> Iterator[None]:
        """Open the process and the stores, on the saved state or else on the folder that `begin` prepares."""
        saved = self.scratch.saved()
        if saved is not None and not self.options.resume:
            _log.warning("removed the files of an interrupted build; --resume would have continued it")
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
                f"{_listed(states)} are the stores of the interrupted build; name the same to resume"
            )
        self._deleted_ids = frozenset(self.change.deleted) if self.change else frozenset()
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
        """Delete the documents of the change. Raises: CollectionError naming those that do not exist."""
        if self._deleted or self.change is None or not self.change.deleted:
            return
        wanted = self.change.deleted
        present = set(self._ask({"present": wanted})["present"])
        if unknown := [each for each in wanted if each not in present]:
            raise CollectionError(f"not in the index; nothing was deleted: {_named(unknown)}")
        self._ask({"delete": wanted})
        self.manifest = replace(self.manifest, documents=self.manifest.documents - len(wanted))

    def write(self, documents: Iterable[IndexDocument]) -> None:
        """Index the documents, except those indexed before an interruption.

        Raises: CollectionError if the documents before the interruption were others.
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
        """Complete the index. Raises: IndexingError if Lucene holds another number of documents."""
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

    def _add(self, batch: list[IndexDocument]) -> None:
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

    def _check_known(self, batch: Sequence[IndexDocument]) -> None:
        """Refuse documents that the index already has, or delete the old ones if they are to be replaced."""
        if self.change is None:
            return
        asked = [each.doc_id for each in batch if each.doc_id not in self._deleted_ids]
        present = self._ask({"present": asked})["present"]
        if not present:
            return
        if not self.change.replacing:
            raise CollectionError(f"already in the index: {_named(present)}")
        self._ask({"delete": present})
        self.manifest = replace(self.manifest, documents=self.manifest.documents - len(present))

    def _check_alike(self, ranking: RankingFields) -> None:
        """Check that documents have the fields of those in the index.

        Only one document of a batch is checked: the reader of the collection has compared the lines.
        """
        has = {"expansions": ranking.expansions is not None, "impacts": ranking.impacts is not None}
        needs = {"expansions": self.manifest.expanded, "impacts": self.manifest.impacts}
        for name, needed in needs.items():
            if has[name] != needed:
                raise CollectionError(
                    f"the documents {'need' if needed else 'must have no'} {name!r}, as those of the index "
                    f"{'have them' if needed else 'have none'}"
                )

    def _vectors(
        self, batch: Sequence[IndexDocument], encoded: Sequence[Sequence[Vectors] | None]
    ) -> list[Vectors]:
        """Choose the vectors of each document's chunks: an encoder's, or the one in the document's line."""
        made = [each for each in encoded if each is not None]
        given = [each.ranking.vector for each in batch]
        if made and any(each is not None for each in given):
            raise CollectionError(
                "the documents have a 'vector', and a ranker would encode them; use only one of them"
            )
        if made:
            vectors = list(made[0])
        else:
            vectors = [_NO_VECTORS if each is None else np.array([each], dtype=np.float32) for each in given]
        expected = self.manifest.vectors
        widths = {each.shape[1] for each in vectors if len(each)}
        if self.manifest.places and widths != ({expected.width} if expected else set()):
            raise CollectionError(
                f"the documents need a 'vector' of {expected.width} numbers, as those of the index have it"
                if expected
                else "the documents must have no 'vector', as those of the index have none"
            )
        return vectors

    def _batches(self, documents: Iterable[IndexDocument]) -> Iterator[tuple[list[IndexDocument], int, int]]:
        """Yield batches of documents still to index, with the number of documents read and of blank ones.

        Documents indexed before an interruption are read again, because they must be the same.
        """
        already = self._resumed["read"] if self._resumed else 0
        encodes = any(store.vectors_version for store in self.options.stores)
        max_characters = _ENCODED_CHARACTERS if encodes else _BATCH_CHARACTERS
        seen: set[str] = set()
        batch: list[IndexDocument] = []
        characters = blank = number = 0
        for number, document in enumerate(documents, start=1):
            if document.doc_id in seen:
                raise CollectionError(f"the doc_id {document.doc_id!r} is used twice")
            seen.add(document.doc_id)
            self._digest.update(document.digested())
            # The same test as in Anserini and Java: a text of only spaces and control characters is blank.
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
            if len(batch) >= _BATCH_DOCUMENTS or characters >= max_characters:
                yield batch, number, blank
                batch, characters, blank = [], 0, 0
        if number < already:
            raise CollectionError(
                f"there are {number:,} documents; the interrupted build had read at least {already:,}"
            )
        if batch or blank:
            yield batch, number, blank

    def _check_same(self, number: int) -> None:
        assert self._resumed is not None
        if number == self._resumed["read"] and self._digest.hexdigest() != self._resumed["digest"]:
            raise CollectionError(
                f"the first {number:,} documents differ from those of the interrupted build; "
                "leave out --resume to start again"
            )

    def _save(self) -> None:
        """Save the state for a resumption. Lucene commits first: it may hold more than the state says."""
        self._ask({"commit": True})
        stores = {key: dict(store.flush()) for key, store in self._stores.items()}
        self.scratch.save(
            {
                "change": self.change.fingerprint() if self.change else None,
                "manifest": asdict(self.manifest),
                "chunks": self._chunks,
                "read": self._read,
                "digest": self._digest.hexdigest(),
                "stores": stores,
            }
        )

    def _check_same_change(self, was: Mapping[str, Any] | None) -> None:
        """Check that the interrupted change is the requested one. Raises: CollectionError."""
        now = self.change.fingerprint() if self.change else None
        if was == now:
            return
        if was is None or now is None or was["of"] != now["of"]:
            raise CollectionError("the interrupted change is of another index; leave out --resume")
        if was["deleted"] != now["deleted"]:
            raise CollectionError(
                "the interrupted change deletes other documents; delete the same ones, or leave out --resume "
                "to start again"
            )
        raise CollectionError(
            f"the interrupted change {'replaces' if was['replacing'] else 'does not replace'} documents; "
            "leave out --resume to start again"
        )

    def _ask(self, header: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        return self._process.ask(header)


def _created_by() -> str:
    return f"farrank {version('farrank')}"


def _named(doc_ids: Sequence[str]) -> str:
    """List the first few ids."""
    more = f" and {len(doc_ids) - _NAMED:,} more" if len(doc_ids) > _NAMED else ""
    return ", ".join(map(repr, doc_ids[:_NAMED])) + more


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys)) or "nothing"
