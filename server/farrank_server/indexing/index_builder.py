"""Build a Lucene index from documents, whole or not at all, in a process of its own."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from farrank_server.java_process.process import JavaProcess, ProcessEnded

_log = logging.getLogger(__name__)
_MANIFEST = "farrank-index.json"
_HEAP_MIB = 1536
_BATCH_DOCUMENTS = 64
_BATCH_CHARACTERS = 2**20


@dataclass(frozen=True, slots=True)
class Document:
    """One document to index; its text comes back from the index byte for byte."""

    doc_id: str
    text: str


class CollectionError(ValueError):
    """The documents cannot be indexed as they are: says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What an index holds and which version of Farrank made it."""

    documents: int
    skipped_blank_documents: int
    created_by: str

    def write(self, folder: Path) -> None:
        """Write the manifest into an index's folder."""
        (folder / _MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> IndexManifest | None:
    """Read a folder's manifest; None if it has none, or one that is not ours."""
    try:
        return IndexManifest(**json.loads((folder / _MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class IndexingError(RuntimeError):
    """Lucene could not write the index: says why."""


class IndexWriter:
    """Writes documents into a Lucene index at `path`; a context manager that leaves no process behind.

    One batch is on its way while the caller collects the next: reading and indexing overlap. Not for use
    inside a running event loop, which it would block.

    Raises: ConfigError if pyserini or Java is missing.
    """

    def __init__(self, path: Path) -> None:
        # A private event loop, which runs only while a method here waits for the process.
        self._loop = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._path = path
        self._is_batch_in_flight = False

    def __enter__(self) -> "IndexWriter":
        self._loop.__enter__()
        try:
            start = JavaProcess.start("farrank_server.indexing.index_child", "indexing process")
            self._process = self._loop.run(start)
        except BaseException:
            self._loop.close()
            raise
        threads = min(os.cpu_count() or 1, 8)
        self._process.post({"path": str(self._path), "threads": threads, "heap_mib": _HEAP_MIB})
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.run(self._process.kill())
        self._loop.close()

    def add(self, batch: Sequence[Document]) -> None:
        """Add documents.

        Raises: IndexingError, perhaps about the batch before.
        """
        texts = [document.text.encode() for document in batch]
        ids = [document.doc_id for document in batch]
        self._loop.run(self._exchange({"ids": ids, "sizes": [len(text) for text in texts]}, texts))

    def finish(self) -> int:
        """Commit the index and return how many documents it holds.

        Raises: IndexingError.
        """
        self._loop.run(self._exchange({"finish": True}, ()))
        return int(self._loop.run(self._answer())["documents"])

    @property
    def last_lines(self) -> str:
        """The end of what Lucene printed."""
        return self._process.last_lines

    async def _exchange(self, header: dict[str, Any], body: Sequence[bytes]) -> None:
        """Send a frame, and receive the answer to the one before."""
        try:
            await self._process.send(header, body)
        except ProcessEnded:
            raise IndexingError(await self._process.last_words()) from None
        if self._is_batch_in_flight:
            await self._answer()
        self._is_batch_in_flight = True

    async def _answer(self) -> dict[str, Any]:
        try:
            header, _ = await self._process.receive()
        except ProcessEnded:
            raise IndexingError(await self._process.last_words()) from None
        if "failed" in header:
            raise IndexingError(f"Lucene cannot write the index: {header['failed']}")
        return header


def build_index(
    documents: Iterable[Document],
    out: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda documents: None,
    on_blank: Callable[[Document], None] = lambda document: None,
) -> int:
    """Index the documents into the folder `out` and return how many it holds.

    Blank documents, in which no query could find anything, are left out; `on_blank` hears of each, and the
    log and the index's manifest say how many. `progress` hears the number of documents handed on so far.

    The index is built beside `out` and renamed at the end: a failure or Ctrl-C leaves `out` as it was.
    `overwrite` replaces an index that Farrank made, and nothing else.

    Raises: FileExistsError, CollectionError (also for no documents and for a doc_id used twice),
    IndexingError, ConfigError if pyserini or Java is missing.
    """
    out = out.absolute()
    _check_place(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _scratch_folder(out) as building:
        skipped = 0
        with IndexWriter(building) as writer:
            sent = 0
            for batch in _batches(documents):
                indexable = []
                for document in batch:
                    if _is_blank(document.text):
                        skipped += 1
                        on_blank(document)
                    else:
                        indexable.append(document)
                if indexable:
                    writer.add(indexable)
                    sent += len(indexable)
                    progress(sent)
            if not sent:
                raise CollectionError("there is no document to index")
            held = writer.finish()
            if held != sent:
                raise IndexingError(f"Lucene took {held} of {sent} documents:\n{writer.last_lines}")
        if skipped:
            _log.warning("left out %d document%s without text", skipped, "" if skipped == 1 else "s")
        IndexManifest(held, skipped, f"farrank {version('farrank')}").write(building)
        _put_in_place(building, out, overwrite)
    return held


def _check_place(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise FileExistsError(f"{out} is not a folder")
    if not any(out.iterdir()):
        return
    if read_manifest(out) is None:
        raise FileExistsError(f"{out} is not empty and not an index that Farrank made; it stays as it is")
    if not overwrite:
        raise FileExistsError(f"{out} holds an index already")


@contextlib.contextmanager
def _scratch_folder(out: Path) -> Iterator[Path]:
    # A neighbour, so that the rename stays inside one file system.
    folder = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(building: Path, out: Path, overwrite: bool) -> None:
    _check_place(out, overwrite)  # building takes a while, and others may have come first
    if not out.exists() or not any(out.iterdir()):
        building.rename(out)
        return
    with _scratch_folder(out) as old:
        out.rename(old)  # onto an empty folder, which POSIX replaces
        try:
            building.rename(out)
        except BaseException:
            old.rename(out)
            raise


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    seen: set[str] = set()
    batch: list[Document] = []
    characters = 0
    for document in documents:
        if document.doc_id in seen:
            raise CollectionError(f"the doc_id {document.doc_id!r} is used twice")
        seen.add(document.doc_id)
        batch.append(document)
        characters += len(document.text)
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _is_blank(text: str) -> bool:
    # Anserini's own test, which is Java's: it refuses a text of nothing but spaces and control characters.
    return all(char <= " " for char in text)
