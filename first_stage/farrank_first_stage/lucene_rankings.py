"""The ways to rank in a Lucene index, in the search process: one class for each, over one open index."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from farrank_first_stage.lucene_hits import read_hits
from farrank_first_stage.lucene_index import (
    Hits,
    OpenIndex,
    among,
    check_count,
    open_reader,
    searcher_of,
    with_ids,
)
from farrank_lucene.lucene_fields import (
    CONTENTS,
    EXPANDED,
    ID,
    IMPACTS,
    NO_EXPANSIONS,
    NO_IMPACTS,
    NO_VECTORS,
    VECTOR,
    VECTORS,
    java,
)
from farrank_settings.errors import ConfigError

# HNSW's cost for each requested vector, as a number of vectors that a scan compares.
SCANNED_FOR_EACH = 25


class RankedIndex:
    """An index with one way to rank; called from several threads. `query_of` builds Lucene's query."""

    def __init__(self, index: OpenIndex, similarity: Any) -> None:
        self._index = index
        self._searcher = searcher_of(index.reader, similarity)

    def query_of(self, request: Mapping[str, Any]) -> Any:
        """Build Lucene's query for a request."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """Describe the index's content."""
        return self._index.describe()

    def search(self, request: Mapping[str, Any], k: int, *, texts: bool) -> Hits:
        """Return at most `k` hits, best first, equals by doc_id."""
        return self._index.search(self._searcher, self.query_of(request), k, texts=texts)

    def score(self, request: Mapping[str, Any], doc_ids: Sequence[str]) -> Hits:
        """Score these documents; documents without any match in the query are left out."""
        query = among(self.query_of(request), doc_ids)
        return self._index.search(self._searcher, query, len(doc_ids), texts=False)

    def texts(self, doc_ids: Sequence[str]) -> list[str]:
        """Read the texts of documents by their ids, in the order given. Raises: Gone."""
        return self._index.texts(doc_ids)

    def locate(self, doc_ids: Sequence[str]) -> list[int]:
        """Return each document's place; -1 if it has none."""
        return self._index.locate(doc_ids)


class Bm25Index(RankedIndex):
    """BM25 over the documents' texts, with or without RM3.

    Raises: ConfigError if the index does not support this.
    """

    def __init__(self, index: OpenIndex, k1: float, b: float, rm3: Mapping[str, Any] | None) -> None:
        super().__init__(index, java("search.similarities.BM25Similarity")(k1, b))
        self._words = _Words()
        self._feedback = None
        if rm3 is not None:
            vectors = index.reader.termVectors()
            if vectors.get(0) is None:
                raise ConfigError(f"{index.path}: RM3 needs an index with document vectors")
            self._feedback = java("io.anserini.search.SimpleSearcher")(index.path)
            self._feedback.set_bm25(k1, b)
            terms, documents = rm3["feedback_terms"], rm3["feedback_documents"]
            # Without a parser of texts, as the vectors are stored; no output; only English terms.
            self._feedback.set_rm3(None, terms, documents, float(rm3["original_query_weight"]), False, True)

    def query_of(self, request: Mapping[str, Any]) -> Any:
        """Build a query of the text's words, and of the terms that RM3 adds."""
        text = request["query"]
        if self._feedback is None:
            return self._words.query(CONTENTS, text)
        terms = self._feedback.get_feedback_terms(text)
        if terms is None:  # no document has a word of the text
            return _weighted(CONTENTS, {})
        entries = terms.entrySet()
        return _weighted(CONTENTS, {each.getKey(): each.getValue() for each in entries.toArray()})


class ExpandedIndex(RankedIndex):
    """BM25 over texts with their expansions; a document without expansions has only its text there.

    Source: Nogueira et al., "Document expansion by query prediction", 2019. Raises: ConfigError.
    """

    def __init__(self, index: OpenIndex, k1: float, b: float) -> None:
        if not index.has(EXPANDED):
            raise ConfigError(f"{index.path}: {NO_EXPANSIONS}")
        super().__init__(index, java("search.similarities.BM25Similarity")(k1, b))
        self._words = _Words()

    def query_of(self, request: Mapping[str, Any]) -> Any:
        """Build a query of the text's words."""
        return self._words.query(EXPANDED, request["query"])


class ImpactIndex(RankedIndex):
    """The sum over tokens of the weight in the query times the weight in the document."""

    def __init__(self, index: OpenIndex) -> None:
        if not index.has(IMPACTS):
            raise ConfigError(f"{index.path}: {NO_IMPACTS}")
        super().__init__(index, java("io.anserini.search.similarity.ImpactSimilarity")())

    def query_of(self, request: Mapping[str, Any]) -> Any:
        """Build a query of weighted tokens."""
        return _weighted(IMPACTS, request["weights"])


class VectorIndex:
    """The inner product with the query's vector; a document's score is the highest of its chunks' products.

    Up to `exact_below` chunks, all are compared. Beyond that, Lucene's HNSW graph is searched for the
    `ef_search` best chunks, or for more if `k` documents probably have more chunks. Raises: ConfigError.
    """

    def __init__(self, index: OpenIndex, ef_search: int, exact_below: int) -> None:
        folder = Path(index.path, VECTORS)
        if not folder.is_dir():
            raise ConfigError(f"{index.path}: {NO_VECTORS}")
        self._index = index
        self._ef_search, self._exact_below = ef_search, exact_below
        reader = open_reader(str(folder))
        self._searcher = searcher_of(reader)
        self._chunks = int(reader.numDocs())
        vectors = index.manifest.vectors if index.manifest else None
        check_count(str(folder), "chunks", self._chunks, vectors.chunks if vectors else None)
        field = java("index.FieldInfos").getMergedFieldInfos(reader).fieldInfo(VECTOR)
        self._width = int(field.getVectorDimension())
        fields = java("search.SortField")
        by_id = fields(ID, java("search.SortField$Type").STRING_VAL)
        self._by_score = java("search.Sort")(fields.FIELD_SCORE, by_id)
        self._vectors = java("queries.function.valuesource.FloatKnnVectorFieldSource")(VECTOR)

    def describe(self) -> dict[str, Any]:
        """Describe the index's content, including its chunks."""
        return {**self._index.describe(), "chunks": self._chunks, "width": self._width}

    def search(self, request: Mapping[str, Any], k: int, *, texts: bool) -> Hits:
        """Return at most `k` hits, best first, equals by doc_id."""
        vector: list[float] = request["vector"]
        wanted = min(self._chunks, math.ceil(k * self._chunks / self._index.documents))
        while True:
            ef = min(self._chunks, max(self._ef_search, wanted))
            exact = self._chunks <= max(self._exact_below, ef * SCANNED_FOR_EACH)
            query = self._scan(vector) if exact else java("search.KnnFloatVectorQuery")(VECTOR, vector, ef)
            best = self._best(query, wanted if exact else ef, k)
            # Some documents may have more of the best chunks than the mean.
            if len(best) >= k or wanted == self._chunks:
                break
            wanted = min(self._chunks, 2 * max(wanted, 1 if exact else ef))
        return self._index.found(best, texts=texts)

    def score(self, request: Mapping[str, Any], doc_ids: Sequence[str]) -> Hits:
        """Score these documents; documents without a vector are left out."""
        asked = with_ids(doc_ids)
        chunks = int(self._searcher.count(asked))
        if not chunks:
            return Hits([], [], [], [])
        best = self._best(among(self._scan(request["vector"]), doc_ids), chunks, len(doc_ids))
        return self._index.found(best, texts=False)

    def texts(self, doc_ids: Sequence[str]) -> list[str]:
        """Read the texts of documents by their ids, in the order given. Raises: Gone."""
        return self._index.texts(doc_ids)

    def locate(self, doc_ids: Sequence[str]) -> list[int]:
        """Return each document's place; -1 if it has none."""
        return self._index.locate(doc_ids)

    def _scan(self, vector: Sequence[float]) -> Any:
        """Build a query that compares every vector."""
        of_query = java("queries.function.valuesource.ConstKnnFloatValueSource")(vector)
        similarity = java("index.VectorSimilarityFunction").MAXIMUM_INNER_PRODUCT
        compared = java("queries.function.valuesource.FloatVectorSimilarityFunction")
        return java("queries.function.FunctionQuery")(compared(similarity, self._vectors, of_query))

    def _best(self, query: Any, chunks: int, documents: int) -> dict[str, float]:
        """Score documents, up to the given number, by their best chunk; best first, equals by doc_id."""
        best: dict[str, float] = {}
        for hit in read_hits(self._searcher.search(query, chunks, self._by_score, True)):
            best.setdefault(hit.doc_id, _inner_product(hit.score))
            if len(best) == documents:
                break
        return best


class _Words:
    """Splits a text into words with Anserini's English analysis."""

    def __init__(self) -> None:
        self._analyzer = java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        self._bag = java("io.anserini.search.query.BagOfWordsQueryGenerator")()

    def query(self, field: str, text: str) -> Any:
        """Build a query of the text's words, each weighted by its number of occurrences."""
        return self._bag.buildQuery(field, self._analyzer, text)


def _weighted(field: str, weights: Mapping[str, float]) -> Any:
    """Build a query of weighted terms."""
    made = java("search.BooleanQuery$Builder")()
    should = java("search.BooleanClause$Occur").SHOULD
    for term, weight in weights.items():
        found = java("search.TermQuery")(java("index.Term")(field, term))
        weighted = java("search.BoostQuery")(found, weight)
        made.add(weighted, should)
    return made.build()


def _inner_product(score: float) -> float:
    """Recover the inner product from Lucene's score, which must not be negative."""
    return score - 1 if score >= 1 else 1 - 1 / score


Ranking = RankedIndex | VectorIndex

RANKINGS: Mapping[str, Callable[..., Ranking]] = {
    "bm25": Bm25Index,
    "expanded": ExpandedIndex,
    "impact": ImpactIndex,
    "dense": VectorIndex,
}


def ranked(index: OpenIndex, ranks: Mapping[str, Any]) -> Ranking:
    """Create the ranking of an index: `by` names the class, the rest its arguments. Raises: ConfigError."""
    return RANKINGS[ranks["by"]](index, **{name: value for name, value in ranks.items() if name != "by"})
