"""The search process: owns the JVM, opens the indexes, answers searches on a few threads.

Run as `python -m farrank_server.first_stage.search_child` by `lucene`, which speaks `frames` with it:

    parent → child    `FirstStageConfig` and heap_mib                                              once, first
                      {id, index, query, k}                                        a search
                      {cancel: id}                                                 nobody waits for it
    child → parent    {ready: {name: {documents, mean_characters}}} or {failed: [why]}             once, first
                      {id, doc_ids, scores} + texts, or {id, error}

Answers come in any order. The child ends when its parent closes the pipe or dies, which is the same.
"""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO

from farrank_server.errors import ConfigError
from farrank_server.java_process.frames import claim_pipes, pack, read_frame, write_frame
from farrank_server.java_process.jvm import import_searcher, start_jvm

_log = logging.getLogger(__name__)

# Of English prose, with the space behind a word. Rather too low: stop words are no terms, but are characters.
_CHARACTERS_PER_TERM = 7


class LuceneIndex:
    """One open index, searched with BM25, or BM25 and RM3. Safe to call from several threads.

    Raises: ConfigError if the index cannot be opened, or cannot do what is asked of it.
    """

    def __init__(self, path: str, k1: float, b: float, rm3: Mapping[str, Any] | None) -> None:
        from jnius import JavaException

        try:
            self._searcher = import_searcher()(path)
        except JavaException as exc:
            what = str(exc).splitlines()[0]  # the rest is Java's stack
            raise ConfigError(f"{path}: the Lucene index cannot be opened: {what}") from exc
        self.documents = int(self._searcher.num_docs)
        if not self.documents:
            raise ConfigError(f"{path}: the Lucene index holds no documents")
        first = self._searcher.doc(0)
        if first is None or _text_of(first.lucene_document()) is None:
            raise ConfigError(f"{path}: the Lucene index holds no texts; store them when it is built")
        self._searcher.set_bm25(k1, b)
        if rm3 is not None:
            weight = float(rm3["original_query_weight"])
            try:
                self._searcher.set_rm3(rm3["feedback_terms"], rm3["feedback_documents"], weight)
            except TypeError as exc:
                raise ConfigError(f"{path}: RM3 needs an index with document vectors") from exc

    def describe(self) -> dict[str, int]:
        """Say how many documents the index holds, and about how many characters one has."""
        terms = int(self._searcher.index_reader.reader.getSumTotalTermFreq("contents"))
        characters = max(0, terms) * _CHARACTERS_PER_TERM // self.documents
        return {"documents": self.documents, "mean_characters": characters}

    def search(self, query: str, k: int) -> tuple[list[str], list[float], list[str]]:
        """Return the doc_ids, scores and texts of at most `k` hits, best first, equals by doc_id.

        The searcher has read each hit's stored fields already, and the hit carries them: asking the index
        for the texts once more, as `LuceneSearcher.doc` does, would double the time of the search.
        """
        hits = self._searcher.search(query, k)
        texts = [_text_of(hit.lucene_document) or "" for hit in hits]
        return [hit.docid for hit in hits], [hit.score for hit in hits], texts


def _text_of(document: Any) -> str | None:
    """Read a document's text; indexes of other makers often store the source line instead of the text."""
    text: str | None = document.get("contents")
    if text is not None:
        return text
    raw: str | None = document.get("raw")
    if raw is None:
        return None
    try:
        source = json.loads(raw)
    except ValueError:
        return raw
    contents = source.get("contents") if isinstance(source, dict) else None
    return contents if isinstance(contents, str) else raw


class SearchThreads:
    """Takes searches in, hands them to its threads, and writes their answers."""

    def __init__(self, indexes: Mapping[str, LuceneIndex], threads: int, to_parent: BinaryIO) -> None:
        self._indexes = indexes
        self._to_parent = to_parent
        self._writing = threading.Lock()
        self._threads = ThreadPoolExecutor(threads)
        self._wanted: set[int] = set()

    def run(self, from_parent: BinaryIO) -> None:
        """Serve until the parent closes the pipe."""
        while (frame := read_frame(from_parent)) is not None:
            request = frame[0]
            if "cancel" in request:
                self._wanted.discard(request["cancel"])
            else:
                self._wanted.add(request["id"])
                answered = self._threads.submit(self._answer, request)
                answered.add_done_callback(partial(self._tell_failure, request["id"]))

    def _answer(self, request: Mapping[str, Any]) -> None:
        # Cancelled while it waited: the search is not made.
        if request["id"] not in self._wanted:
            return
        frame = self._search(request)
        # Cancelled while it ran: megabytes of texts are not sent.
        if request["id"] in self._wanted:
            self._wanted.discard(request["id"])
            self._send(frame)

    def _tell_failure(self, search_id: int, answered: Future[None]) -> None:
        if error := answered.exception():
            _log.error("a search was not answered", exc_info=error)
            # Its caller would wait until its deadline.
            self._send(pack({"id": search_id, "error": "internal"}))

    def _send(self, frame: bytes) -> None:
        # The parent may be gone; `run` sees that, too.
        with self._writing, contextlib.suppress(BrokenPipeError):
            self._to_parent.write(frame)
            self._to_parent.flush()

    def _search(self, request: Mapping[str, Any]) -> bytes:
        try:
            doc_ids, scores, texts = self._indexes[request["index"]].search(request["query"], request["k"])
            return pack({"id": request["id"], "doc_ids": doc_ids, "scores": scores}, texts)
        except Exception as exc:
            # One bad search must not end a process that serves many.
            error = "internal"
            if str(getattr(exc, "classname", "")).endswith("TooManyClauses"):
                error = "terms"
            elif "OutOfMemoryError" in str(exc):
                error = "memory"
            else:
                _log.exception("a search failed")
            return pack({"id": request["id"], "error": error})


def main() -> None:
    """Open the indexes that the parent names, say so, and serve."""
    from_parent, to_parent = claim_pipes()
    logging.basicConfig(format="%(levelname)s %(message)s")
    first = read_frame(from_parent)
    if first is None:
        return
    setup = first[0]
    start_jvm(setup["heap_mib"])
    from jnius import autoclass

    # Bounds the distinct terms of every search of this process: many hold a thread for seconds.
    autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(setup["max_query_terms"])
    indexes: dict[str, LuceneIndex] = {}
    problems = []
    for name, index in setup["indexes"].items():
        try:
            indexes[name] = LuceneIndex(**index)
        except ConfigError as exc:
            problems.append(f"first_stage.indexes.{name}.path: {exc}")
    if problems:
        write_frame(to_parent, {"failed": problems})
        os._exit(1)
    write_frame(to_parent, {"ready": {name: index.describe() for name, index in indexes.items()}})
    SearchThreads(indexes, setup["search_threads"], to_parent).run(from_parent)
    # Nothing is left to save, and nobody waits for a search. The threads are not ended first: Java's own
    # would delay the end, and one of ours that ends attached to the JVM can take it down.
    os._exit(0)


if __name__ == "__main__":
    main()
