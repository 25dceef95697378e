"""Calls from a first stage's run: a query each, with the texts of its best candidates."""

from collections.abc import Sequence
from pathlib import Path

from farrank_loadtest.errors import InputError, LoadtestError
from farrank_loadtest.targets.interface import Document
from farrank_loadtest.trec import missing_documents, read_collection, read_queries, read_run
from farrank_loadtest.workloads.call import Call, Workload


def read_candidates(run: Path, queries: Path, collection: Sequence[Path], depth: int) -> Workload:
    """Take the first `depth` documents of every query of a TREC run.

    Raises: InputError naming file and line of what is malformed, the query without text, or the documents
    that the collection does not hold; LoadtestError for a depth below 1.
    """
    if depth < 1:
        raise LoadtestError(f"depth {depth}: must be at least 1")
    ranked = {query_id: [each.doc_id for each in docs[:depth]] for query_id, docs in read_run(run).items()}
    texts_of_queries = read_queries(queries)
    unknown = next((query_id for query_id in ranked if query_id not in texts_of_queries), None)
    if unknown is not None:
        raise InputError(f"{queries}: holds no query {unknown!r}, which {run} has candidates for")
    wanted = {doc_id for doc_ids in ranked.values() for doc_id in doc_ids}
    texts = read_collection(collection, wanted)
    missing = missing_documents(texts, wanted)
    if missing:
        raise InputError(f"{run}: {missing}")
    calls = tuple(
        Call(texts_of_queries[query_id], tuple(Document(doc_id, texts[doc_id]) for doc_id in doc_ids))
        for query_id, doc_ids in ranked.items()
    )
    return Workload(str(run), calls)
