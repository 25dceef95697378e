"""Reranking whole TREC runs in this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from farrank_client import FarrankError, Ranking
from farrank_client.calls import Document, DocumentLike, RerankOptions
from farrank_local.reranker import Reranker, as_finished
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
    done: Callable[[int, bool], None],
) -> None:
    """Rerank the queries of the candidates that are not finished, and keep each when it has finished.

    `done` gets the number of finished ones, and whether their speed is that of the run. It is not until as
    many have finished as were begun before the first did: they finish late, and perhaps all at once.
    Raises: QueryFailed at the first failure, which drops the queries in flight; InvalidArgument for an option
        that cannot be sent; the errors of `document_of` and of the run.
    """
    waiting = [query_id for query_id in candidates if query_id not in unfinished.finished]
    begun = 0

    def asked() -> Iterator[tuple[str, Sequence[DocumentLike]]]:
        nonlocal begun
        for query_id in waiting:
            begun += 1
            yield queries[query_id], [document_of(each.doc_id) for each in candidates[query_id]]

    begun_first = 0
    for ended, (number, answer) in enumerate(as_finished(reranker, asked(), options), 1):
        query_id = waiting[number]
        try:
            ranking = Ranking.from_pb(answer.result())
        except FarrankError as error:
            raise QueryFailed(query_id, error) from error
        doc_ids = (each.id for each in ranking.results)
        unfinished.add(query_id, rank(query_id, zip(doc_ids, ranking.run_scores(), strict=True)))
        begun_first = begun_first or begun
        done(len(unfinished.finished), ended >= begun_first)
