"""The indexing process: owns the JVM and writes one index.

Run as `python -m farrank_indexes.index_child` by `index_builder`. They exchange `frames`:

    parent → child    {path, threads, heap_mib, places, chunks, before}
                                                                  once, first: how many places and chunks of
                                                                  the index stay, and the folder of the index
                                                                  that is changed, or null
                      {present: [doc_id]}                         which of these that index holds
                      {delete: [doc_id]}                          delete these
                      {ids, expansions, impacts, chunks, vectors} + texts     see `document.batch_frame`
                      {commit: true}                              keep everything sent so far
                      {finish: true, merge: bool}                 complete the index
    child → parent    {} or {failed: why}, once for each frame; {present: [doc_id]};
                      {documents, chunks} for the last

Without `commit` or `finish` nothing is kept: a parent that dies leaves no index that looks complete.
"""

import base64
import itertools
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farrank_indexes.lucene_writer import LuceneWriter, WrittenDocument
from farrank_lucene.frames import claim_pipes, end_with_parent, read_frame, write_frame
from farrank_lucene.jvm import start_jvm

_log = logging.getLogger(__name__)

_FILES_FAILED = re.compile(r"\bjava\.n?io\.[\w.$]*(?:IOException|FileSystemException): (.+)")


def unpack_batch(
    header: Mapping[str, Any], texts: Sequence[str], place: int, first_chunk: int
) -> Iterator[WrittenDocument]:
    """Unpack a frame. `place` and `first_chunk` are the places of its first document and chunk."""
    total = sum(header["chunks"])
    flat = np.frombuffer(base64.b64decode(header["vectors"]), dtype="<f4")
    vectors = flat.reshape(total, -1) if total else flat.reshape(0, 0)
    reading = iter(texts)
    read_chunks = 0
    for doc_id, expansions, impacts, chunks in zip(
        header["ids"], header["expansions"], header["impacts"], header["chunks"], strict=True
    ):
        yield WrittenDocument(
            place=place,
            doc_id=doc_id,
            text=next(reading),
            expansions=None if expansions is None else list(itertools.islice(reading, expansions)),
            impacts=impacts,
            first_chunk=first_chunk + read_chunks,
            vectors=vectors[read_chunks : read_chunks + chunks],
        )
        place += 1
        read_chunks += chunks


def main() -> None:
    """Execute the parent's frames."""
    from_parent, to_parent = claim_pipes()
    # The next build may use the same folder, so this process must stop writing when its parent ends.
    end_with_parent()
    logging.basicConfig(format="%(levelname)s %(message)s")
    writer: LuceneWriter | None = None
    folder = Path()
    while (frame := read_frame(from_parent)) is not None:
        header, texts = frame
        try:
            if writer is None:
                folder, before = Path(header["path"]), header["before"] and Path(header["before"])
                start_jvm(header["heap_mib"])
                kept = header["places"], header["chunks"]
                writer = LuceneWriter(folder, header["threads"], *kept, before)
                answer: dict[str, Any] = {}
            else:
                answer = _do(writer, header, texts)
        except Exception as exc:
            problem = _problem_with_files(exc)
            if problem is None:
                _log.exception("indexing failed")
            answer = {"failed": str(exc) if problem is None else f"{folder}: {problem}"}
        write_frame(to_parent, answer)
    # Uncommitted data is not wanted, and the JVM's own threads would only delay the exit.
    os._exit(0)


def _problem_with_files(error: Exception) -> str | None:
    """Return the reason if the disk failed (a full one, for example), else None.

    Such a failure is logged without a traceback. Java names the reason in the innermost error.
    """
    texts = [str(error), *(getattr(error, "stacktrace", None) or ())]
    found = _FILES_FAILED.findall("\n".join(texts))
    return str(found[-1]).strip() if found else None


def _do(writer: LuceneWriter, header: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Execute a frame and return the answer."""
    if "present" in header:
        return {"present": writer.present(header["present"])}
    if "delete" in header:
        writer.delete(header["delete"])
    elif "commit" in header:
        writer.commit()
    elif "finish" in header:
        documents, chunks = writer.finish(merge=header["merge"])
        return {"documents": documents, "chunks": chunks}
    else:
        writer.add(list(unpack_batch(header, texts, writer.places, writer.chunks)))
    return {}


if __name__ == "__main__":
    main()
