"""Farrank in PyTerrier's pipelines: a transformer that reranks, and one that searches an index.

It needs `pip install 'farrank[pyterrier]'`. Neither starts Java.
"""

from collections.abc import Mapping
from typing import Any

from farrank_client.calls import Document, RerankOptions
from farrank_client.client import Client

try:
    import pandas as pd
    import pyterrier as pt
except ModuleNotFoundError as error:
    raise ImportError(
        f"farrank_client.pyterrier needs pip install 'farrank[pyterrier]' (no module {error.name!r})"
    ) from error

# The columns that a ranking replaces.
_RANKING = ["score", "rank"]


class FarrankReranker(pt.Transformer):
    """Reranks the documents of each query, reading each as a whole.

    `client` is a `farrank.Client` of a server, or a `farrank.Reranker` in this process. The frame has the
    columns qid, query, docno and `text_field`; with `index`, the name of an index that the client's server
    has, it needs no texts. Other columns stay. `options` are the client's `RerankOptions`. Scores order each
    query's documents as they are ranked, also with adaptive depth (`Ranking.run_scores`).
    Raises: KeyError naming missing columns; TypeError for an unknown option; the client's FarrankError.
    """

    def __init__(self, client: Client, *, text_field: str = "text", index: str = "", **options: Any) -> None:
        super().__init__()
        if unknown := options.keys() - RerankOptions.__annotations__.keys():
            raise TypeError(f"there is no option {', '.join(sorted(unknown))}")
        if options.get("top_n") is not None:
            raise TypeError("top_n: would drop documents; write `reranker % N`")
        self._client, self._text_field, self._index = client, text_field, index
        self._options = options

    def transform(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """Replace the scores and ranks of a frame of results."""
        needed = ["qid", "query", "docno", *([] if self._index else [self._text_field])]
        if absent := [name for name in needed if name not in frame.columns]:
            raise KeyError(f"FarrankReranker: the results have no column {', '.join(map(repr, absent))}")
        kept = frame.drop(columns=[name for name in _RANKING if name in frame.columns])
        if not len(kept):
            return kept.assign(score=pd.Series(dtype="float64"), rank=pd.Series(dtype="int64"))
        groups = [group for _, group in kept.groupby("qid", sort=False)]
        rankings = self._client.rank_all(
            ((group["query"].iloc[0], self._documents(group)) for group in groups), **self._options
        )
        ranked = []
        for group, ranking in zip(groups, rankings, strict=True):
            order = [result.index for result in ranking.results]
            scores, ranks = ranking.run_scores(), range(pt.model.FIRST_RANK, pt.model.FIRST_RANK + len(order))
            ranked.append(group.iloc[order].assign(score=scores, rank=list(ranks)))
        return pd.concat(ranked, ignore_index=True)

    def _documents(self, group: "pd.DataFrame") -> list[Document]:
        ids = group["docno"].astype(str)
        if self._index:
            return [Document(doc_id, index=self._index) for doc_id in ids]
        return [Document(doc_id, text) for doc_id, text in zip(ids, group[self._text_field], strict=True)]


class FarrankSearch(pt.Transformer):
    """Searches an index of the client's server for each query, and reranks the `k` documents found.

    The frame has the columns qid and query; other columns stay. `index` may be left out if there is only one.
    With `return_texts=True` the results have the column text.
    Raises: KeyError naming missing columns; the client's FarrankError.
    """

    def __init__(self, client: Client, *, index: str | None = None, k: int = 100, **options: Any) -> None:
        super().__init__()
        self._client, self._index, self._k, self._options = client, index, k, options

    def transform(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """Find the documents of each query of a frame of topics."""
        if absent := [name for name in ("qid", "query") if name not in frame.columns]:
            raise KeyError(f"FarrankSearch: the topics have no column {', '.join(map(repr, absent))}")
        texts = ["text"] if self._options.get("return_texts") else []
        columns = dict.fromkeys([*frame.columns, "docno", *texts, *_RANKING])
        rows: list[Mapping[str, Any]] = []
        for topic in frame.to_dict(orient="records"):
            ranking = self._client.search_and_rerank(
                topic["query"], index=self._index, k=self._k, **self._options
            )
            for place, (result, score) in enumerate(zip(ranking.results, ranking.run_scores(), strict=True)):
                found = {"docno": result.id, **dict.fromkeys(texts, result.text)}
                rows.append({**topic, **found, "score": score, "rank": pt.model.FIRST_RANK + place})
        return pd.DataFrame(rows, columns=[*columns]).astype({"score": "float64", "rank": "int64"})
