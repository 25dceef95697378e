"""The indexing process: owns the JVM and writes one Lucene index through pyserini.

Run as `python -m farrank_server.indexing.index_child` by `index_builder`, which speaks `frames` with it:

    parent → child    {path, threads, heap_mib}   once, first
                      {ids} + texts               a batch
                      {finish: true}              commit
    child → parent    {} or {failed: why}, once for each frame; {documents: n} for the last

Without `finish` nothing is committed: a parent that dies leaves no index that could be taken for whole.
"""

import logging
import os
from typing import Any

from farrank_server.java_process.frames import claim_pipes, read_frame, write_frame
from farrank_server.java_process.jvm import start_jvm

_BUFFER_MIB = 256  # of postings before a segment is written; Anserini's 4 GiB would outgrow the heap
_log = logging.getLogger(__name__)


def main() -> None:
    """Index what the parent sends."""
    from_parent, to_parent = claim_pipes()
    logging.basicConfig(format="%(levelname)s %(message)s")
    indexer: Any = None
    path = ""
    while (frame := read_frame(from_parent)) is not None:
        header, texts = frame
        answer: dict[str, Any] = {}
        try:
            if indexer is None:
                start_jvm(header["heap_mib"])
                path = header["path"]
                indexer = _open(path, header["threads"])
            elif "finish" in header:
                answer["documents"] = _finish(indexer, path)
            else:
                pairs = zip(header["ids"], texts, strict=True)
                indexer.add_batch_dict([{"id": doc_id, "contents": text} for doc_id, text in pairs])
        except Exception as exc:
            _log.exception("indexing failed")
            answer = {"failed": str(exc)}
        write_frame(to_parent, answer)
    # What is not committed is not wanted, and the JVM's own threads would only delay the end.
    os._exit(0)


def _open(path: str, threads: int) -> Any:
    from pyserini.index.lucene import LuceneIndexer

    # Contents are stored, for candidates bring their texts; document vectors are what RM3 expands from.
    options = ["-index", path, "-storeContents", "-storeDocvectors", "-memoryBuffer", str(_BUFFER_MIB)]
    return LuceneIndexer(args=options, threads=threads)


def _finish(indexer: Any, path: str) -> int:
    from pyserini.index.lucene import LuceneIndexReader

    # One segment: the index never changes, and each segment costs every search. SimpleIndexer swallows
    # errors at its end (a full disk, say), so the index is opened and counted.
    indexer.object.close(True)
    return int(LuceneIndexReader(path).stats()["documents"])


if __name__ == "__main__":
    main()
