"""The field's files, shared by load tests and training: TREC runs, qrels, queries and collections.

Every reader takes plain or gzipped UTF-8. Errors name the file and line.
`farrank_trec.measures` must be imported separately: it needs ir_measures.
"""

from farrank_trec.runs import (
    Candidates,
    Qrels,
    Run,
    ScoredDoc,
    check_queries,
    qrels_by_id_prefix,
    rank,
    read_candidates,
    read_qrels,
    read_run,
    write_qrels,
    write_run,
)
from farrank_trec.text_files import (
    CollectionDocument,
    DocumentKeys,
    missing_documents,
    read_collection,
    read_documents,
    read_queries,
    write_queries,
)

__all__ = [
    "Candidates",
    "CollectionDocument",
    "DocumentKeys",
    "Qrels",
    "Run",
    "ScoredDoc",
    "check_queries",
    "missing_documents",
    "qrels_by_id_prefix",
    "rank",
    "read_candidates",
    "read_collection",
    "read_documents",
    "read_qrels",
    "read_queries",
    "read_run",
    "write_qrels",
    "write_queries",
    "write_run",
]
