"""A Lucene index as the search process has it: opened, ranked as a kind asks, read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from farrank_server.errors import ConfigError, Gone
from farrank_server.first_stage.lucene_fields import CONTENTS, ID, bytes_of, cast, java
from farrank_server.java_process.jvm import import_searcher

# Of English prose, with the space behind a word. Rather too low: stop words are no terms, but are characters.
_CHARACTERS_PER_TERM = 7


class Found(NamedTuple):
    """Hits, best first; `texts` is empty where none were asked for."""

    doc_ids: list[str]
    scores: list[float]
    texts: list[str]


class OpenIndex:
    """One index, whatever ranks in it. Safe to call from several threads.

    Raises: ConfigError if the index cannot be opened, or holds no documents or no texts.
    """

    def __init__(self, path: str) -> None:
        from jnius import JavaException

        self.path = path
        try:
            directory = java("store.FSDirectory").open(java("java.nio.file.Paths").get(path))
            self.reader = java("index.DirectoryReader").open(directory)
        except JavaException as exc:
            what = str(exc).splitlines()[0]  # the rest is Java's stack
            raise ConfigError(f"{path}: the Lucene index cannot be opened: {what}") from exc
        self.documents = int(self.reader.numDocs())
        if not self.documents:
            raise ConfigError(f"{path}: the Lucene index holds no documents")
        if _text_of(self._stored(0)) is None:
            raise ConfigError(f"{path}: the Lucene index holds no texts; store them when it is built")

    def describe(self) -> dict[str, Any]:
        """Say how many documents the index holds, and about how many characters one has."""
        terms = int(self.reader.getSumTotalTermFreq(CONTENTS))
        characters = max(0, terms) * _CHARACTERS_PER_TERM // self.documents
        return {"documents": self.documents, "mean_characters": characters}

    def searcher(self, similarity: Any) -> Any:
        """Open a searcher that scores so."""
        searcher = java("search.IndexSearcher")(
            self.reader, signature="(Lorg/apache/lucene/index/IndexReader;)V"
        )
        searcher.setSimilarity(similarity)
        return searcher

    def search(self, searcher: Any, query: Any, k: int, *, texts: bool) -> Found:
        """Return at most `k` hits, best first, equals by doc_id."""
        fields = java("search.SortField")
        order = java("search.Sort")(fields.FIELD_SCORE, fields(ID, java("search.SortField$Type").STRING_VAL))
        # Each hit brings its doc_id: it was sorted by it. True: with scores, too.
        found = searcher.search(query, k, order, True).scoreDocs
        hits = [cast("search.FieldDoc", each) for each in found]
        doc_ids = [hit.fields[1].utf8ToString() for hit in hits]
        read = [_text_of(self._stored(hit.doc)) or "" for hit in hits] if texts else []
        return Found(doc_ids, [hit.score for hit in hits], read)

    def among(self, query: Any, doc_ids: Sequence[str]) -> Any:
        """Make a query that finds no other documents, and scores as before."""
        ids = java("java.util.ArrayList")()
        for doc_id in doc_ids:
            ids.add(bytes_of(doc_id))
        occur = java("search.BooleanClause$Occur")
        both = java("search.BooleanQuery$Builder")()
        both.add(java("search.TermInSetQuery")(ID, ids), occur.FILTER)
        both.add(query, occur.MUST)
        return both.build()

    def texts(self, doc_ids: Sequence[str]) -> list[str]:
        """Read the texts of documents by their ids, in the order given. Raises: Gone."""
        searcher = self.searcher(java("search.similarities.BooleanSimilarity")())
        texts = []
        unknown = []
        for doc_id in doc_ids:
            term = java("index.Term")(ID, bytes_of(doc_id))
            hits = searcher.search(java("search.TermQuery")(term), 1).scoreDocs
            if not hits:
                unknown.append(doc_id)
            elif not unknown:
                texts.append(_text_of(self._stored(hits[0].doc)) or "")
        if unknown:
            raise Gone(unknown)
        return texts

    def _stored(self, number: int) -> Any:
        return self.reader.storedFields().document(number)


def _text_of(document: Any) -> str | None:
    """Read a document's text; indexes of other makers often store the source line instead of the text."""
    text: str | None = document.get(CONTENTS)
    if text is not None:
        return text
    raw: str | None = document.get("raw")
    if raw is None:
        return None
    try:
        source = json.loads(raw)
    except ValueError:
        return raw
    contents = source.get(CONTENTS) if isinstance(source, dict) else None
    return contents if isinstance(contents, str) else raw


class Bm25Index:
    """An index that ranks with BM25, or BM25 and RM3.

    Raises: ConfigError if it cannot do what is asked of it.
    """

    def __init__(self, index: OpenIndex, k1: float, b: float, rm3: Mapping[str, Any] | None) -> None:
        self._index = index
        self._searcher = index.searcher(java("search.similarities.BM25Similarity")(k1, b))
        self._analyzer = java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        self._words = java("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self._feedback = None
        if rm3 is not None:
            self._feedback = import_searcher()(index.path)
            self._feedback.set_bm25(k1, b)
            weight = float(rm3["original_query_weight"])
            try:
                self._feedback.set_rm3(rm3["feedback_terms"], rm3["feedback_documents"], weight)
            except TypeError as exc:
                raise ConfigError(f"{index.path}: RM3 needs an index with document vectors") from exc

    def describe(self) -> dict[str, Any]:
        """Say what the index holds."""
        return self._index.describe()

    def search(self, request: Mapping[str, Any], k: int, *, texts: bool) -> Found:
        """Return at most `k` hits, best first."""
        query = self._query(request["query"])
        return self._index.search(self._searcher, query, k, texts=texts)

    def score(self, request: Mapping[str, Any], doc_ids: Sequence[str]) -> Found:
        """Score these documents, without those that share nothing with the query."""
        query = self._query(request["query"])
        return self._index.search(
            self._searcher, self._index.among(query, doc_ids), len(doc_ids), texts=False
        )

    def texts(self, doc_ids: Sequence[str]) -> list[str]:
        """Read the texts of documents by their ids."""
        return self._index.texts(doc_ids)

    def _query(self, text: str) -> Any:
        """Make a query of the text's words, and of what RM3 adds to them."""
        words = self._words.buildQuery(CONTENTS, self._analyzer, text)
        if self._feedback is None:
            return words
        # None if no document has a word of the text.
        weights = self._feedback.get_feedback_terms(text) or {}
        expanded = java("search.BooleanQuery$Builder")()
        for term, weight in weights.items():
            found = java("search.TermQuery")(java("index.Term")(CONTENTS, term))
            expanded.add(java("search.BoostQuery")(found, weight), java("search.BooleanClause$Occur").SHOULD)
        return expanded.build()


def open_index(index: OpenIndex, ranks: Mapping[str, Any]) -> Bm25Index:
    """Have an index ranked as its kind says: `by`, and what that takes."""
    kinds = {"bm25": Bm25Index}
    return kinds[ranks["by"]](index, **{name: value for name, value in ranks.items() if name != "by"})
