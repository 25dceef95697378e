"""Reranking whole TREC runs in this process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farrank_client import FarrankError
from farrank_client.calls import Document, DocumentLike, RerankOptions
from farrank_local.reranker import Reranker
from farrank_trec import Run, rank
from farrank_trec.unfinished_run import UnfinishedRun, asked_of

DocumentOf = Callable[[str], DocumentLike]


def of_index(name: str) -> DocumentOf:
    """Send documents by their ids alone: an opened index has their texts, and perhaps their tokens."""
    return lambda doc_id: Document(doc_id, index=name)


class QueryFailed(Exception):
    """A query could not be reranked; the message names it, and `cause` is the error of its call."""

    def __init__(self, query_id: str, cause: FarrankError) -> None:
        super().__init__(f"query {query_id!r}: {' '.join(cause.message.split())}")
        self.cause = cause


def digests(candidates: Run, queries: Mapping[str, str]) -> dict[str, str]:
    """Digest what is asked for each query of the candidates, for an `UnfinishedRun`."""
    return {
        query_id: asked_of(queries[query_id], (each.doc_id for each in ranked))
        for query_id, ranked in candidates.items()
    }


def made_by(reranker: Reranker, options: RerankOptions) -> dict[str, Any]:
    """Describe all that decides the scores, for an `UnfinishedRun`: the ranker, and the options set."""
    (ranker,) = reranker.rankers().rankers
    described = {"ranker": ranker.version, "runtime": ranker.runtime, "precision": ranker.precision}
    return described | {name: str(value) for name, value in options.items() if value is not None}


def rerank_run(
    reranker: Reranker,
    candidates: Run,
    queries: Mapping[str, str],
    document_of: DocumentOf,
    unfinished: UnfinishedRun,
    options: RerankOptions,
    done: Callable[[int], None],
) -> None:
    """Rerank the queries of the candidates that are not finished; `done` gets the number of finished ones.

    Raises: QueryFailed at the first query that fails, after the earlier ones are kept; the errors of
        `document_of` and of the run.
    """
    waiting = [query_id for query_id in candidates if query_id not in unfinished.finished]

    def documents_of(query_id: str) -> Sequence[DocumentLike]:
        return [document_of(each.doc_id) for each in candidates[query_id]]

    rankings = reranker.rank_all(((queries[each], documents_of(each)) for each in waiting), **options)
    for query_id in waiting:
        try:
            ranking = next(rankings)
        except FarrankError as error:
            raise QueryFailed(query_id, error) from error
        doc_ids = (each.id for each in ranking.results)
        unfinished.add(query_id, rank(query_id, zip(doc_ids, ranking.run_scores(), strict=True)))
        done(len(unfinished.finished))
