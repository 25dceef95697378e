"""Farrank as a model of MTEB, for its reranking tasks.

It needs `pip install 'farrank[mteb]'`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from farrank_client.calls import RerankOptions
from farrank_client.client import Client

try:
    from mteb.models import ModelMeta
except ModuleNotFoundError as error:
    raise ImportError(
        f"farrank_client.mteb needs pip install 'farrank[mteb]' (no module {error.name!r})"
    ) from error


class FarrankModel:
    """Reranks the candidates of MTEB's tasks, reading each document as a whole (mteb's `SearchProtocol`).

    `client` is a `farrank.Client` of a server, or a `farrank.Reranker` in this process; `options` are its
    `RerankOptions`. A document's text begins with its title; a query ends with its instruction, if the task
    has one. MTEB finds the results of a ranker again by its name and version.
    Raises: TypeError for an unknown option; the client's FarrankError, also for an unknown ranker.
    """

    def __init__(self, client: Client, **options: Any) -> None:
        if unknown := options.keys() - RerankOptions.__annotations__.keys():
            raise TypeError(f"there is no option {', '.join(sorted(unknown))}")
        if options.get("top_n") is not None:
            raise TypeError("top_n: MTEB wants a score for every candidate")
        self._client, self._options = client, options
        self._rows: dict[str, int] = {}
        catalog = client.rankers()
        names = [each.name for each in catalog.rankers]
        name = options.get("ranker") or names[0]
        if name not in names:
            raise ValueError(f"ranker: there is no {name!r}, only {', '.join(names)}")
        ranker = catalog.rankers[names.index(name)]
        depth = "" if options.get("depth") is None else f"@{options['depth']}"
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": f"farrank/{ranker.name}",
                "revision": f"{ranker.version}{depth}",
                "max_tokens": float(ranker.max_document_tokens),
                "model_type": ["cross-encoder"],
                "framework": ["API"],
            }
        )

    def index(self, corpus: Any, **_: Any) -> None:
        """Take the documents of a task, a `datasets.Dataset` with id, text and perhaps title."""
        self._corpus = corpus
        self._rows = {doc_id: row for row, doc_id in enumerate(corpus["id"])}

    def search(
        self, queries: Any, *, top_ranked: Mapping[str, Sequence[str]] | None = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """Score the candidates of each query.

        Raises: ValueError if the task has no candidates, or one is not among its documents.
        """
        if top_ranked is None:
            raise ValueError(
                "a ranker needs candidates: choose a reranking task, or give a retrieval task those of a "
                "first stage with `task.convert_to_reranking(predictions)`"
            )
        asked = [query for query in queries if top_ranked.get(query["id"])]
        rankings = self._client.rank_all(
            ((_query_of(query), self._documents(top_ranked[query["id"]])) for query in asked),
            **self._options,
        )
        scores: dict[str, dict[str, float]] = {query["id"]: {} for query in queries}
        for query, ranking in zip(asked, rankings, strict=True):
            doc_ids = [result.id for result in ranking.results]
            scores[query["id"]] = dict(zip(doc_ids, ranking.run_scores(), strict=True))
        return scores

    def _documents(self, doc_ids: Sequence[str]) -> dict[str, str]:
        if unknown := [doc_id for doc_id in doc_ids if doc_id not in self._rows]:
            raise ValueError(f"candidates that are no documents of the task: {', '.join(unknown[:5])}")
        rows = (self._corpus[self._rows[doc_id]] for doc_id in doc_ids)
        return {row["id"]: _text_of(row) for row in rows}


def _text_of(document: Mapping[str, Any]) -> str:
    title, text = document.get("title"), document.get("text") or ""
    return f"{title}\n\n{text}" if title else text


def _query_of(query: Mapping[str, Any]) -> str:
    instruction = query.get("instruction")
    return f"{query['text']} {instruction}" if instruction else str(query["text"])
