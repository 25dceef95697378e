"""Build a Lucene index from documents: whole, or not at all."""

import contextlib
import logging
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from farrank_server.indexing.document import CollectionError, Document
from farrank_server.indexing.manifest import IndexManifest, created_by, read_manifest
from farrank_server.indexing.writer_process import IndexingError, WriterProcess

_log = logging.getLogger(__name__)
_BATCH_DOCUMENTS = 64
_BATCH_CHARACTERS = 2**20


def build_index(
    documents: Iterable[Document],
    out: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda documents: None,
) -> int:
    """Index the documents into the folder `out` and return how many it holds.

    Blank documents, in which no query could find anything, are left out; the log and the index's manifest
    say how many. `progress` hears the number of documents handed on so far.

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
        with WriterProcess(building) as writer:
            sent = 0
            for batch in _batches(documents):
                indexable = [document for document in batch if not _is_blank(document.text)]
                skipped += len(batch) - len(indexable)
                if indexable:
                    writer.add(indexable)
                    sent += len(indexable)
                    progress(sent)
            if not sent:
                raise CollectionError("there is no document to index")
            held = writer.finish()
            if held != sent:
                raise IndexingError(f"Lucene took {held} of {sent} documents:\n{writer.last_lines()}")
        if skipped:
            _log.warning("left out %d documents without text", skipped)
        IndexManifest(held, skipped, created_by()).write(building)
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
        raise FileExistsError(f"{out} holds an index already; say so to overwrite it")


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
