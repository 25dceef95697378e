"""TREC's column files: runs (`query_id Q0 doc_id rank score tag`) and qrels (`query_id 0 doc_id grade`).

A run may also have MS MARCO's form (`query_id doc_id rank`), which Anserini and Pyserini write on request.
A run is ordered as in trec_eval, so that it has the order in which it is evaluated: by score as a 32-bit
float, equal scores by doc_id, descending. The rank in the file is not used.
"""

import math
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_trec.data_sets import is_data_set, judgement_rows, run_rows
from farrank_trec.errors import InputError
from farrank_trec.lines import check_id, numbered_lines

_RUN_COLUMNS = "query_id Q0 doc_id rank score tag"
_MS_MARCO_COLUMNS = "query_id doc_id rank"


@dataclass(frozen=True, slots=True)
class ScoredDoc:
    """One line of a run; `rank` counts from 1."""

    query_id: str
    doc_id: str
    rank: int
    score: float


# query_id -> documents, best first; queries are in the order of the file.
Run = dict[str, list[ScoredDoc]]


def rank(query_id: str, scores: Iterable[tuple[str, float]]) -> list[ScoredDoc]:
    """Sort a query's documents by score, then by doc_id, both descending."""
    ordered = sorted(scores, key=lambda scored: (array("f", [scored[1]])[0], scored[0]), reverse=True)
    return [ScoredDoc(query_id, doc_id, place, score) for place, (doc_id, score) in enumerate(ordered, 1)]


def read_run(path: Path) -> Run:
    """Read a run and order it; its own ranks must be whole numbers and are not used.

    Raises: InputError naming file and line if a line is malformed or names a document twice for a query.
    """
    scores: dict[str, dict[str, float]] = {}
    for where, query_id, doc_id, score in _run_lines(path):
        of_query = scores.setdefault(query_id, {})
        if doc_id in of_query:
            raise _stands_twice(where, query_id, doc_id)
        of_query[doc_id] = score
    return {query_id: rank(query_id, of_query.items()) for query_id, of_query in scores.items()}


def check_queries(run: Collection[str], queries: Collection[str], file: Path | None = None) -> None:
    """Check that every query of a run has a text; `file` is the run's.

    Raises: InputError naming the file and the first queries without one.
    """
    if unknown := [query_id for query_id in run if query_id not in queries]:
        raise InputError(
            ("" if file is None else f"{file}: ")
            + f"{len(unknown):,} of {len(run):,} queries of the run have no text in the queries: "
            + ", ".join(unknown[:5])
        )


class Candidates(Mapping[str, list[str]]):
    """The first documents of each query of a run, best first, by query_id in the order of the file.

    Each document is kept as a number of four bytes: a run to train with has tens of millions of lines, and
    names each document many times.
    """

    def __init__(self, doc_ids: list[str], numbers: dict[str, "array[int]"]) -> None:
        self._doc_ids, self._numbers = doc_ids, numbers

    def __getitem__(self, query_id: str) -> list[str]:
        return [self._doc_ids[number] for number in self._numbers[query_id]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def read_candidates(path: Path, depth: int) -> Candidates:
    """Read a run in the order of `read_run`, and keep the first `depth` documents of each query.

    During reading a line takes about ten bytes of memory, besides the ids.
    Raises: InputError as `read_run`.
    """
    numbers: dict[str, int] = {}
    read: dict[str, tuple[array[int], array[float]]] = {}
    current = None
    for where, query_id, doc_id, score in _run_lines(path):
        if query_id != current:
            current = query_id
            documents, scores = read.setdefault(query_id, (array("i"), array("f")))
            # Only the current query has a set: most runs keep a query's lines together.
            seen = set(documents)
        number = numbers.setdefault(doc_id, len(numbers))
        if number in seen:
            raise _stands_twice(where, query_id, doc_id)
        seen.add(number)
        documents.append(number)
        scores.append(score)
    doc_ids = list(numbers)
    kept: dict[str, array[int]] = {}
    for query_id in list(read):
        documents, scores = read.pop(query_id)
        scored = sorted(
            zip(scores, map(doc_ids.__getitem__, documents), documents, strict=True), reverse=True
        )
        kept[query_id] = array("i", [number for _, _, number in scored[:depth]])
    return Candidates(doc_ids, kept)


def _run_lines(path: Path) -> Iterator[tuple[str, str, str, float]]:
    """Yield each line's place, query_id, doc_id and score. Raises: InputError if there is none."""
    empty = True
    rows = run_rows(path) if is_data_set(path) else _rows_of_run(path)
    for where, (query_id, _, doc_id, written_rank, score, _) in rows:
        if not written_rank.isdecimal():
            raise InputError(f"{where}: rank {written_rank!r} must be a whole number")
        try:
            # float() takes 1_0 for 10.
            value = float(score.replace("_", "x"))
        except ValueError as error:
            raise InputError(f"{where}: score {score!r} must be a number") from error
        if not math.isfinite(value):
            raise InputError(f"{where}: score {score!r} must be finite")
        empty = False
        yield where, query_id, doc_id, value
    if empty:
        raise InputError(f"{path}: the run is empty; expected lines of {_RUN_COLUMNS}")


def _rows_of_run(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield columns in TREC's form; those of MS MARCO get the score 1/rank, as in Anserini's converter."""
    columns = 0
    for where, line in numbered_lines(path):
        values = line.split()
        columns = columns or (3 if len(values) == 3 else 6)
        if len(values) != columns:
            known = _RUN_COLUMNS if columns == 6 else _MS_MARCO_COLUMNS
            raise InputError(f"{where}: {len(values)} columns; a run has {columns}: {known}")
        if columns == 3:
            query_id, doc_id, place = values
            if not place.isdecimal() or not int(place):
                raise InputError(f"{where}: rank {place!r} must be a whole number from 1")
            values = [query_id, "Q0", doc_id, place, repr(1 / int(place)), "run"]
        yield where, values


def _stands_twice(where: str, query_id: str, doc_id: str) -> InputError:
    return InputError(f"{where}: document {doc_id!r} appears twice for query {query_id!r}")


def write_run(path: Path, run: Mapping[str, Sequence[ScoredDoc]], tag: str) -> None:
    """Write a run that `read_run` reads back unchanged: scores keep every digit.

    Raises: InputError if an id or the tag does not fit in its column, or the file cannot be written.
    """
    check_id(str(path), "tag", tag)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as out:
            for query_id, documents in run.items():
                check_id(str(path), "query_id", query_id)
                for each in documents:
                    check_id(str(path), "doc_id", each.doc_id)
                    out.write(f"{query_id} Q0 {each.doc_id} {each.rank} {each.score!r} {tag}\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


_QRELS_COLUMNS = "query_id iteration doc_id grade"

# query_id -> doc_id -> grade; documents without a judgement are not relevant.
Qrels = dict[str, dict[str, int]]


def read_qrels(path: Path) -> Qrels:
    """Read judgements; the second column is ignored, as in every tool.

    Raises: InputError naming file and line if a line is malformed or contradicts an earlier judgement.
    """
    qrels: Qrels = {}
    rows = judgement_rows(path) if is_data_set(path) else _rows(path, "qrels have", _QRELS_COLUMNS)
    for where, (query_id, _, doc_id, text) in rows:
        # int() would also take 1_0.
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text):
            raise InputError(f"{where}: grade {text!r} must be a whole number of at most 9 digits")
        grade = int(text)
        if qrels.setdefault(query_id, {}).setdefault(doc_id, grade) != grade:
            known = qrels[query_id][doc_id]
            raise InputError(
                f"{where}: document {doc_id!r} has grade {grade} for query {query_id!r}, but {known} before"
            )
    if not qrels:
        raise InputError(f"{path}: the qrels are empty; expected lines of {_QRELS_COLUMNS}")
    return qrels


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write judgements that `read_qrels` reads back unchanged.

    Raises: InputError if an id does not fit in its column, or the file cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8", newline="\n") as out:
            for query_id, grades in qrels.items():
                check_id(str(path), "query_id", query_id)
                for doc_id, grade in grades.items():
                    out.write(f"{query_id} 0 {check_id(str(path), 'doc_id', doc_id)} {grade}\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def qrels_by_id_prefix(run: Run) -> Qrels:
    """Judge a run's documents by name: documents named `QUERYID_…` are relevant.

    MS MARCO FarRelevant names its documents like this and has no qrels. A query whose relevant document was
    not retrieved is judged without a relevant document and counts as 0.
    """
    return {
        query_id: {each.doc_id: int(each.doc_id.startswith(f"{query_id}_")) for each in documents}
        for query_id, documents in run.items()
    }


def _rows(path: Path, have: str, columns: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each line's place and columns, after checking their number."""
    for where, line in numbered_lines(path):
        values = line.split()
        if len(values) != len(columns.split()):
            raise InputError(f"{where}: {len(values)} columns; {have} {len(columns.split())}: {columns}")
        yield where, values
