"""The search process: owns the JVM, opens the indexes and answers searches on a few threads.

`lucene_host` runs it as `python -m farrank_first_stage.search_child`, and exchanges `frames` with it:

    parent → child    {indexes: {name: {path, ranks}}, search_threads, max_query_terms, heap_mib,
                      tracing}                                                     once, first
                      {id, index, ASKED, k, texts: bool}                           a search
                      {id, index, ASKED, only: [doc_id]}                           scores of these
                      {id, index, read: [doc_id]}                                  their texts
                      {id, index, locate: [doc_id]}                                their places
                      {…, traceparent}                                             any of these, traced
                      {cancel: id}                                                 its caller has left
                      {ping: true}                                                 asks for {stuck_s}
    child → parent    {ready: {name: {documents, mean_characters, …}}} or {failed: [why]}          once, first
                      {id, doc_ids, scores, places} + texts, {id} + texts, {id, places},
                      {id, gone: [doc_id]} or {id, error}
                      {id}                                                         cancelled, without a result
                      {stuck_s}                                                    to a ping: for how long all
                                                                                   threads have been busy
                                                                                   without finishing a search
                      {heap_full: how much}                                        Java's heap stays full: end
                                                                                   this process

ASKED has the fields of the index's way to rank (`lucene_rankings`): query, weights or vector. An index
without places returns none; the place of an unknown document is -1. Answers come in any order. The child ends
when its parent closes the pipe, which also happens if the parent dies.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from farrank_calls.errors import Gone, redacted
from farrank_first_stage.lucene_index import Hits, OpenIndex
from farrank_first_stage.lucene_rankings import ranked
from farrank_lucene.frames import claim_pipes, pack, read_frame, write_frame
from farrank_lucene.heap_watch import HeapWatch, java_heap
from farrank_lucene.jvm import start_jvm
from farrank_settings.errors import ConfigError

if TYPE_CHECKING:
    from farrank_calls.telemetry.tracing import Tracing

_log = logging.getLogger(__name__)


class SearchedIndex(Protocol):
    """An index with one way to rank; called from several threads."""

    def describe(self) -> dict[str, Any]:
        """Describe the index's content."""
        ...

    def search(self, request: Mapping[str, Any], k: int, *, texts: bool) -> Hits:
        """Return at most `k` hits, best first, equals by doc_id."""
        ...

    def score(self, request: Mapping[str, Any], doc_ids: Sequence[str]) -> Hits:
        """Score these documents; documents that a search would not find are left out."""
        ...

    def texts(self, doc_ids: Sequence[str]) -> list[str]:
        """Read the texts of documents by their ids, in the order given. Raises: Gone."""
        ...

    def locate(self, doc_ids: Sequence[str]) -> list[int]:
        """Return each document's place; -1 if it has none."""
        ...


class SearchThreads:
    """Receives searches, hands them to its threads, and writes their answers."""

    def __init__(
        self,
        indexes: Mapping[str, SearchedIndex],
        threads: int,
        to_parent: BinaryIO,
        heap: HeapWatch,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._indexes = indexes
        self._heap = heap
        self._tracing = tracing
        self._to_parent = to_parent
        self._writing = threading.Lock()
        self._threads = ThreadPoolExecutor(threads)
        self._wanted: set[int] = set()
        self._count, self._counting = threads, threading.Lock()
        self._busy, self._changed_s = 0, time.monotonic()

    def run(self, from_parent: BinaryIO) -> None:
        """Serve until the parent closes the pipe."""
        while (frame := read_frame(from_parent)) is not None:
            request = frame[0]
            if "cancel" in request:
                self._wanted.discard(request["cancel"])
            elif "ping" in request:
                self._send(pack({"stuck_s": self._stuck_s()}))
            else:
                self._wanted.add(request["id"])
                answered = self._threads.submit(self._answer, request, time.time_ns())
                answered.add_done_callback(partial(self._send_failure, request["id"]))

    def _answer(self, request: Mapping[str, Any], came_ns: int) -> None:
        # Cancelled before it started: there is no search.
        if request["id"] not in self._wanted:
            self._send(pack({"id": request["id"]}))
            return
        self._count_busy(1)
        try:
            with self._heap.search(), self._traced(request, came_ns):
                answer, texts = self._search(request)
        finally:
            self._count_busy(-1)
        # If it was cancelled while it ran, megabytes of texts are not sent.
        if request["id"] in self._wanted:
            self._wanted.discard(request["id"])
            self._send(pack({"id": request["id"], **answer}, texts))
        else:
            self._send(pack({"id": request["id"]}))
        if answer.get("error") == "memory" and (full := self._heap.check()):
            self._send(pack({"heap_full": full}))

    def _traced(self, request: Mapping[str, Any], came_ns: int) -> contextlib.AbstractContextManager[None]:
        """Put a span around a traced search, from its arrival on."""
        if self._tracing is None or "traceparent" not in request:
            return contextlib.nullcontext()
        name = next((each for each in ("read", "locate", "only") if each in request), "search")
        facts = {"index": request["index"], "waited_seconds": (time.time_ns() - came_ns) / 1e9}
        if "k" in request:
            facts["documents"] = request["k"]
        return self._tracing.continued(request["traceparent"], f"lucene {name}", came_ns, facts)

    def _count_busy(self, by: int) -> None:
        with self._counting:
            self._busy, self._changed_s = self._busy + by, time.monotonic()

    def _stuck_s(self) -> float:
        with self._counting:
            return time.monotonic() - self._changed_s if self._busy == self._count else 0.0

    def _send_failure(self, search_id: int, answered: Future[None]) -> None:
        if error := answered.exception():
            _log.error("a search was not answered: %s", redacted(error))
            # Without an answer, the caller would wait until its deadline.
            self._send(pack({"id": search_id, "error": "internal"}))

    def _send(self, frame: bytes) -> None:
        # The parent may be gone; `run` notices that, too.
        with self._writing, contextlib.suppress(BrokenPipeError):
            self._to_parent.write(frame)
            self._to_parent.flush()

    def _search(self, request: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        try:
            index = self._indexes[request["index"]]
            if "read" in request:
                return {}, index.texts(request["read"])
            if "locate" in request:
                return {"places": index.locate(request["locate"])}, ()
            if "only" in request:
                found = index.score(request, request["only"])
            else:
                found = index.search(request, request["k"], texts=request["texts"])
            return {"doc_ids": found.doc_ids, "scores": found.scores, "places": found.places}, found.texts
        except Gone as exc:
            return {"gone": exc.doc_ids}, ()
        except Exception as exc:
            # One failed search must not end a process that serves many.
            error = "internal"
            if str(getattr(exc, "classname", "")).endswith("TooManyClauses"):
                error = "terms"
            elif "OutOfMemoryError" in str(exc):
                error = "memory"
            else:
                _log.error("a search failed: %s", redacted(exc))
            return {"error": error}, ()


def main() -> None:
    """Open the indexes that the parent names, report that, and serve."""
    from_parent, to_parent = claim_pipes()
    logging.basicConfig(format="%(levelname)s %(message)s")
    first = read_frame(from_parent)
    if first is None:
        return
    setup = first[0]
    start_jvm(setup["heap_mib"])
    from jnius import autoclass

    # Limits the distinct terms of every search of this process: many terms keep a thread busy for seconds.
    autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(setup["max_query_terms"])
    indexes: dict[str, SearchedIndex] = {}
    problems = []
    opened: dict[str, OpenIndex] = {}
    for name, index in setup["indexes"].items():
        try:
            path = index["path"]
            # Several ways to rank may share one index.
            opened[path] = opened.get(path) or OpenIndex(path)
            indexes[name] = ranked(opened[path], index["ranks"])
        except ConfigError as exc:
            problems.append(f"first_stage.indexes.{name}.path: {exc}")
    if problems:
        write_frame(to_parent, {"failed": problems})
        os._exit(1)
    tracing = None
    if setup["tracing"] is not None:
        # Imported here, so that a process without tracing does not load its libraries.
        from farrank_calls.telemetry.config import TracingConfig
        from farrank_calls.telemetry.tracing import Tracing

        tracing = Tracing(TracingConfig(**setup["tracing"]), "farrank-search")
    heap = HeapWatch(java_heap())
    write_frame(to_parent, {"ready": {name: index.describe() for name, index in indexes.items()}})
    SearchThreads(indexes, setup["search_threads"], to_parent, heap, tracing).run(from_parent)
    if tracing is not None:
        tracing.close()
    # Nothing is left to save, and no caller waits. The threads are not ended first: Java's own would delay
    # the end, and a Python thread that ends while attached to the JVM can crash it.
    os._exit(0)


if __name__ == "__main__":
    main()
