"""The search process: owns the JVM, opens the indexes, answers searches on a few threads.

Run as `python -m farrank_server.first_stage.search_child` by `lucene`, which speaks `frames` with it:

    parent → child    {heap_mib, threads, max_query_terms, indexes: {name: {path, k1, b, rm3}}}    once, first
                      {id, index, query, k}                                        a search
                      {cancel: id}                                                 nobody waits for it
    child → parent    {ready: {name: {documents, mean_characters}}} or {failed: [why]}             once, first
                      {id, doc_ids, scores, sizes} + texts, or {id, error}

Answers come in any order. The child ends when its parent closes the pipe or dies, which is the same.
"""

import json
import logging
import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from farrank_server.java_process.frames import claim_pipes, pack, read_frame, write_frame
from farrank_server.java_process.jvm import import_searcher, start_jvm

_log = logging.getLogger(__name__)
_JOIN_TIMEOUT_S = 1.0

# Of English prose, with the space behind a word. Rather too low: stop words are no terms, but are characters.
_CHARACTERS_PER_TERM = 7


class IndexProblem(Exception):
    """The index cannot be opened, or cannot do what the configuration asks: says where and why."""


class TooManyTerms(Exception):
    """The query has more distinct terms than `allow_query_terms` allows."""


class Hit(NamedTuple):
    """One document found."""

    doc_id: str
    text: str
    score: float


class LuceneIndex:
    """One open index, searched with BM25, or BM25 and RM3. Safe to call from several threads.

    Raises: IndexProblem at opening.
    """

    def __init__(self, path: str, k1: float, b: float, rm3: Mapping[str, Any] | None) -> None:
        if not any(Path(path).glob("segments_*")):
            raise IndexProblem(f"{path}: there is no Lucene index here")
        from jnius import JavaException

        try:
            self._searcher = import_searcher()(path)
        except JavaException as exc:
            what = str(exc).splitlines()[0]  # the rest is Java's stack
            raise IndexProblem(f"{path}: the Lucene index cannot be opened: {what}") from exc
        self.documents = int(self._searcher.num_docs)
        if not self.documents:
            raise IndexProblem(f"{path}: the Lucene index holds no documents")
        first = self._searcher.doc(0)
        if first is None or _text_of(first.lucene_document()) is None:
            raise IndexProblem(f"{path}: the Lucene index holds no texts; store them when it is built")
        self._searcher.set_bm25(k1, b)
        if rm3 is not None:
            self._use_rm3(path, rm3)

    def describe(self) -> dict[str, int]:
        """Say how many documents the index holds, and about how many characters one has."""
        terms = int(self._searcher.index_reader.reader.getSumTotalTermFreq("contents"))
        characters = max(0, terms) * _CHARACTERS_PER_TERM // self.documents
        return {"documents": self.documents, "mean_characters": characters}

    def search(self, query: str, k: int) -> list[Hit]:
        """Return at most `k` hits, best first, equal scores in the order of doc_id.

        The searcher has read each hit's stored fields already, and the hit carries them: asking the index
        for the texts once more, as `LuceneSearcher.doc` does, would double the time of the search.
        Raises: TooManyTerms.
        """
        from jnius import JavaException

        try:
            hits = self._searcher.search(query, k)
        except JavaException as exc:
            if str(exc.classname).endswith("TooManyClauses"):
                raise TooManyTerms from exc
            raise
        return [Hit(hit.docid, _text_of(hit.lucene_document) or "", hit.score) for hit in hits]

    def _use_rm3(self, path: str, rm3: Mapping[str, Any]) -> None:
        try:
            self._searcher.set_rm3(
                rm3["feedback_terms"], rm3["feedback_documents"], float(rm3["original_query_weight"])
            )
        except TypeError as exc:
            raise IndexProblem(f"{path}: RM3 needs an index with document vectors") from exc


def allow_query_terms(most: int) -> None:
    """Bound the distinct terms of every search of this process: many hold a thread for seconds."""
    from jnius import autoclass

    autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(most)


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
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._wanted: set[int] = set()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(threads)]

    def run(self, from_parent: BinaryIO) -> None:
        """Serve until the parent closes the pipe."""
        for thread in self._threads:
            thread.start()
        while (frame := read_frame(from_parent)) is not None:
            request = frame[0]
            if "cancel" in request:
                self._wanted.discard(request["cancel"])
            else:
                self._wanted.add(request["id"])
                self._waiting.put(request)
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)

    def _serve(self) -> None:
        import jnius

        try:
            while (request := self._waiting.get()) is not None:
                # Cancelled while it waited: the search is not made.
                if request["id"] in self._wanted:
                    answer = self._answer(request)
                    # Cancelled while it ran: megabytes of texts are not sent.
                    if request["id"] in self._wanted:
                        self._wanted.discard(request["id"])
                        self._send(answer)
        except BrokenPipeError:
            pass  # the parent is gone, and `run` sees it, too
        finally:
            jnius.detach()  # a thread that ends attached can take the JVM down with it

    def _answer(self, request: Mapping[str, Any]) -> bytes:
        try:
            hits = self._indexes[request["index"]].search(request["query"], request["k"])
            # An index that others made may hold half a surrogate pair, which cannot be encoded.
            texts = [hit.text.encode(errors="replace") for hit in hits]
        except TooManyTerms:
            return pack({"id": request["id"], "error": "terms"})
        except Exception as exc:
            # One bad search must not end a process that serves many.
            out_of_memory = "OutOfMemoryError" in str(exc)
            if not out_of_memory:
                _log.exception("a search failed")
            return pack({"id": request["id"], "error": "memory" if out_of_memory else "internal"})
        header = {
            "id": request["id"],
            "doc_ids": [hit.doc_id for hit in hits],
            "scores": [hit.score for hit in hits],
            "sizes": [len(text) for text in texts],
        }
        return pack(header, texts)

    def _send(self, frame: bytes) -> None:
        with self._writing:
            self._to_parent.write(frame)
            self._to_parent.flush()


def main() -> None:
    """Open the indexes that the parent names, say so, and serve."""
    from_parent, to_parent = claim_pipes()
    logging.basicConfig(format="%(levelname)s %(message)s")
    first = read_frame(from_parent)
    if first is None:
        return
    setup = first[0]
    start_jvm(setup["heap_mib"])
    allow_query_terms(setup["max_query_terms"])
    indexes: dict[str, LuceneIndex] = {}
    problems = []
    for name, index in setup["indexes"].items():
        try:
            indexes[name] = LuceneIndex(index["path"], index["k1"], index["b"], index["rm3"])
        except IndexProblem as exc:
            problems.append(f"first_stage.indexes.{name}.path: {exc}")
    if problems:
        write_frame(to_parent, {"failed": problems})
        os._exit(1)
    write_frame(to_parent, {"ready": {name: index.describe() for name, index in indexes.items()}})
    SearchThreads(indexes, setup["threads"], to_parent).run(from_parent)
    # Nothing is left to save, and the JVM's own threads would only delay the end.
    os._exit(0)


if __name__ == "__main__":
    main()
