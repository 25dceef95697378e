"""Relevance judgements: `query_id 0 doc_id grade`."""

import re
from pathlib import Path

from farrank_loadtest.errors import InputError
from farrank_loadtest.trec.lines import numbered_lines
from farrank_loadtest.trec.runs import Run

_COLUMNS = "query_id iteration doc_id grade"

# query_id -> doc_id -> grade; what is not judged is not relevant.
Qrels = dict[str, dict[str, int]]


def read_qrels(path: Path) -> Qrels:
    """Read judgements; the second column is ignored, as by every tool.

    Raises: InputError naming file and line if a line is malformed, or judges a document once more and
        otherwise.
    """
    qrels: Qrels = {}
    for where, line in numbered_lines(path):
        columns = line.split()
        if len(columns) != 4:
            raise InputError(f"{where}: {len(columns)} columns; qrels have 4: {_COLUMNS}")
        query_id, _, doc_id, text = columns
        grade = _whole(where, text)
        if qrels.setdefault(query_id, {}).setdefault(doc_id, grade) != grade:
            known = qrels[query_id][doc_id]
            raise InputError(
                f"{where}: document {doc_id!r} is graded {grade} for query {query_id!r}, and {known} before"
            )
    if not qrels:
        raise InputError(f"{path}: the qrels are empty; expected lines of {_COLUMNS}")
    return qrels


def qrels_by_id_prefix(run: Run) -> Qrels:
    """Judge a run's own documents by name: relevant is what is called `QUERYID_…`.

    MS MARCO FarRelevant names its documents so, and comes without qrels. A query whose relevant document was
    not retrieved is judged all the same, with no relevant document: it counts, and counts 0.
    """
    return {
        query_id: {each.doc_id: int(each.doc_id.startswith(f"{query_id}_")) for each in documents}
        for query_id, documents in run.items()
    }


def _whole(where: str, text: str) -> int:
    # Not what int() takes beyond it: 1_0 is no grade.
    if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
        raise InputError(f"{where}: grade {text!r} must be a whole number of at most 9 digits")
    return int(text)
