"""Build a Lucene index from documents, whole or not at all, in a process of its own."""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
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


def read_manifest(folder: Path) -> IndexManifest | None:
    """Read a folder's manifest; None if it has none, or one that is not ours."""
    try:
        return IndexManifest(**json.loads((folder / _MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class IndexingError(RuntimeError):
    """Lucene could not write the index: says why."""


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
    skipped = 0

    def leave_out(document: Document) -> None:
        nonlocal skipped
        skipped += 1
        on_blank(document)

    # A neighbour, so that renaming stays inside one file system.
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.", ignore_cleanup_errors=True) as scratch:
        building, old = Path(scratch, "new"), Path(scratch, "old")
        building.mkdir()
        held = _write_index(_batches(documents, leave_out), building, progress)
        if skipped:
            _log.warning("left out %d document%s without text", skipped, "" if skipped == 1 else "s")
        manifest = IndexManifest(held, skipped, f"farrank {version('farrank')}")
        (building / _MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
        _check_place(out, overwrite)  # building takes a while, and others may have come first
        try:
            if out.exists():
                out.rename(old)
            building.rename(out)
        except BaseException:
            if old.exists() and not out.exists():
                old.rename(out)
            raise
    return held


def _write_index(batches: Iterable[list[Document]], folder: Path, progress: Callable[[int], None]) -> int:
    """Write a Lucene index through the indexing process, which is gone afterwards.

    One batch is on its way while the next is collected: reading and indexing overlap. The private event loop
    runs only while something is awaited, so that Ctrl-C stops the reading at once.
    """
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as loop:
        process = loop.run(JavaProcess.start("farrank_server.indexing.index_child", "indexing process"))
        try:
            process.post({"path": str(folder), "threads": min(os.cpu_count() or 1, 8), "heap_mib": _HEAP_MIB})
            sent = 0
            for batch in batches:
                texts = [document.text for document in batch]
                loop.run(_exchange(process, {"ids": [document.doc_id for document in batch]}, texts))
                sent += len(batch)
                progress(sent)
            if not sent:
                raise CollectionError("there is no document to index")
            loop.run(_exchange(process, {"finish": True}))
            held = int(loop.run(_answer(process))["documents"])
            if held != sent:
                raise IndexingError(f"Lucene took {held} of {sent} documents:\n{process.last_lines}")
            return held
        finally:
            loop.run(process.kill())


async def _exchange(process: JavaProcess, header: dict[str, Any], texts: Sequence[str] = ()) -> None:
    """Send a frame, and receive the answer to the one before."""
    try:
        await process.send(header, texts)
    except ProcessEnded:
        raise IndexingError(await process.last_words()) from None
    await _answer(process)


async def _answer(process: JavaProcess) -> dict[str, Any]:
    try:
        header, _ = await process.receive()
    except ProcessEnded:
        raise IndexingError(await process.last_words()) from None
    if "failed" in header:
        raise IndexingError(f"Lucene cannot write the index: {header['failed']}")
    return header


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


def _batches(documents: Iterable[Document], on_blank: Callable[[Document], None]) -> Iterator[list[Document]]:
    seen: set[str] = set()
    batch: list[Document] = []
    characters = 0
    for document in documents:
        if document.doc_id in seen:
            raise CollectionError(f"the doc_id {document.doc_id!r} is used twice")
        seen.add(document.doc_id)
        # Anserini's own test, which is Java's: nothing but spaces and control characters is no text.
        if all(char <= " " for char in document.text):
            on_blank(document)
            continue
        batch.append(document)
        characters += len(document.text)
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
