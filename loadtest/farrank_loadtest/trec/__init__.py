"""The files of the field: TREC runs, qrels, queries and collections, read strictly.

Every reader takes plain or gzipped UTF-8 and fails with the file, the line and what was expected there.
"""

from farrank_loadtest.trec.collections import missing_documents, read_collection
from farrank_loadtest.trec.qrels import Qrels, qrels_by_id_prefix, read_qrels
from farrank_loadtest.trec.queries import read_queries
from farrank_loadtest.trec.runs import Run, ScoredDoc, rank, read_run, write_run

__all__ = [
    "Qrels",
    "Run",
    "ScoredDoc",
    "missing_documents",
    "qrels_by_id_prefix",
    "rank",
    "read_collection",
    "read_qrels",
    "read_queries",
    "read_run",
    "write_run",
]
