"""One open Lucene index as the worker searches it, through pyserini. Needs a running JVM."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from farrank_server.first_stage.jvm import import_searcher

# Lucene stops at 1,024 distinct terms. A query can be a whole document here.
_MAX_QUERY_TERMS = 2**20


class IndexProblem(Exception):
    """The index cannot be opened, or cannot do what the configuration asks: says where and why."""


class Hit(NamedTuple):
    """One document found."""

    doc_id: str
    text: str
    score: float


class LuceneIndex:
    """Searches with BM25, or BM25 and RM3. Safe to call from several threads.

    Raises: IndexProblem at opening.
    """

    def __init__(self, path: str, k1: float, b: float, rm3: Mapping[str, Any] | None) -> None:
        if not any(Path(path).glob("segments_*")):
            raise IndexProblem(f"{path}: there is no Lucene index here")
        from jnius import JavaException, autoclass

        autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_MAX_QUERY_TERMS)
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

    def search(self, query: str, k: int) -> list[Hit]:
        """Return at most `k` hits, best first, equal scores in the order of doc_id.

        The searcher has read each hit's stored fields already, and the hit carries them: asking the index
        for the texts once more, as `LuceneSearcher.doc` does, would double the time of the search.
        """
        hits = self._searcher.search(query, k)
        return [Hit(hit.docid, _text_of(hit.lucene_document) or "", hit.score) for hit in hits]

    def _use_rm3(self, path: str, rm3: Mapping[str, Any]) -> None:
        try:
            self._searcher.set_rm3(
                rm3["feedback_terms"], rm3["feedback_documents"], float(rm3["original_query_weight"])
            )
        except TypeError as exc:
            raise IndexProblem(f"{path}: RM3 needs an index with document vectors") from exc


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
