"""Training sets in files: judgements with a run to draw negatives from, triples of texts, and JSON lines.

The files are read and checked once; texts are read again from the files when they are drawn.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from farrank_training.byte_spans import ByteSpans
from farrank_training.checksums import checksums
from farrank_training.errors import TrainingError
from farrank_training.groups import Candidates, Group, TrainingSet, drawn
from farrank_training.known_relevant import KnownRelevant, text_key
from farrank_training.text_store import TextStore
from farrank_trec import missing_documents, read_candidates, read_qrels, read_queries
from farrank_trec.errors import InputError
from farrank_trec.lines import decoded, is_blank, json_object, named_string, raw_lines

T = TypeVar("T")

# Losses compute in fp32.
_LARGEST_SCORE = float(np.finfo(np.float32).max)


class _Files:
    """The files that a set was read from."""

    def __init__(self, *paths: Path) -> None:
        self._paths = list(dict.fromkeys(map(str, paths)))

    @cached_property
    def checksums(self) -> dict[str, str]:
        """Hash each file, once for all seeds."""
        return checksums(self._paths)


@dataclass(frozen=True)
class _FileSet(TrainingSet):
    """A set that was read from files."""

    files: _Files
    notes: Sequence[str]
    seed: int

    def of_seed(self, seed: int) -> TrainingSet:
        return replace(self, seed=seed)

    @property
    def checksums(self) -> Mapping[str, str]:
        return self.files.checksums


def judged_set(
    queries: Path,
    qrels: Path,
    candidates: Path,
    collections: Sequence[Path],
    *,
    negatives: int = 1,
    top: int = 100,
    seed: int = 0,
    query_ids: Collection[str] | None = None,
    query_field: str = "",
    fields: Mapping[str, str] | None = None,
) -> TrainingSet:
    """Take a relevant document of each query, and negatives from the first `top` candidates of a run.

    A negative is a candidate without a judgement, or with grade 0 or less. `query_ids` chooses queries, as a
    fold does; `query_field` and `fields` name keys of JSON lines, as in `read_queries` and `read_documents`.
    Raises: InputError naming file and line if a file cannot be used; TrainingError if a number is out of its
        limits, a query_id is unknown, or no query has both kinds of documents.
    """
    _at_least_one(negatives=negatives, top=top)
    texts = _chosen(read_queries(queries, query_field), query_ids, queries)
    judged, run = read_qrels(qrels), read_candidates(candidates, top)

    def documents_of(query_id: str) -> tuple[list[str], list[str]]:
        """Give the relevant documents, and the candidates that are not relevant."""
        grades = judged.get(query_id, {})
        relevant = [doc_id for doc_id, grade in grades.items() if grade > 0]
        return relevant, [doc_id for doc_id in run.get(query_id, ()) if grades.get(doc_id, 0) <= 0]

    wanted: set[str] = set()
    for found in map(documents_of, texts):
        if all(found):  # a query that lacks either is left out
            wanted.update(*found)
    store = TextStore(collections, wanted, fields)
    reasons: Counter[str] = Counter()
    kept: list[_JudgedQuery] = []
    for query_id, text in texts.items():
        relevant, others = documents_of(query_id)
        positive, negative = store.numbers(relevant), store.numbers(others)
        if not relevant:
            reasons["without a relevant document"] += 1
        elif not others:
            reasons[f"without a negative among the first {top:,} candidates"] += 1
        elif not positive:
            reasons["whose relevant documents have no text"] += 1
        elif not negative:
            reasons["whose negatives have no text"] += 1
        else:
            kept.append(_JudgedQuery(query_id, text, positive, negative))
    notes = (
        [missing] if (missing := missing_documents(store, wanted, "judged or candidate documents")) else []
    )
    if store.blank:
        notes.append(f"{store.blank:,} of {len(wanted):,} judged or candidate documents are blank")
    notes += _notes(reasons, len(texts), sum(len(each.negatives) < negatives for each in kept), negatives)
    files = _Files(queries, qrels, candidates, *collections)
    return _Judged(files, notes, seed, store, kept, negatives)


@dataclass(frozen=True, slots=True)
class _JudgedQuery:
    """A query and its documents, by their numbers in the text store."""

    query_id: str
    query: str
    positives: "array[int]"
    negatives: "array[int]"


@dataclass(frozen=True)
class _Judged(_FileSet):
    store: TextStore
    queries: list[_JudgedQuery]
    negatives: int

    def __len__(self) -> int:
        return len(self.queries)

    def group(self, index: int, epoch: int) -> Group:
        each = self.queries[index]
        chosen = _pick(each.positives, each.negatives, self.negatives, self.seed, epoch, each.query_id)
        return Group(
            each.query_id,
            each.query,
            tuple(map(self.store.text_at, chosen)),
            keys=tuple(chosen),
            relevant=frozenset(each.positives),
        )

    def candidates(self, index: int, negatives: int) -> Candidates:
        each = self.queries[index]
        others = _few(each.negatives, negatives, self.seed, each.query_id)
        return Candidates(
            each.query, *(tuple(map(self.store.text_at, some)) for some in (each.positives, others))
        )


def triples_set(path: Path) -> TrainingSet:
    """Take lines `query<TAB>relevant text<TAB>other text`, each of them in every epoch.

    Raises: InputError naming file and line if a line has other columns or an empty one; also for no line.
    """
    spans, numbers, known = ByteSpans([path]), array("q"), KnownRelevant()
    for where, offset, line in raw_lines(path):
        query, relevant, _ = _read_triple(where, line)
        known.add(query, relevant)
        spans.keep(0, offset, line)
        numbers.append(_line_number(where))
    if not numbers:
        raise InputError(
            f"{path}: the file is empty; expected lines of query<TAB>relevant text<TAB>other text"
        )
    known.sort()
    return _Triples(_Files(path), [], 0, spans, numbers, known)


@dataclass(frozen=True)
class _Triples(_FileSet):
    """Nothing is drawn: the seed has no influence."""

    spans: ByteSpans
    numbers: "array[int]"
    known: KnownRelevant

    def __len__(self) -> int:
        return len(self.numbers)

    def group(self, index: int, epoch: int) -> Group:
        query, *documents = _read_triple(self.spans.place(index), self.spans.read(index))
        return Group(
            str(self.numbers[index]),
            query,
            tuple(documents),
            keys=tuple(map(text_key, documents)),
            relevant=self.known.of(query),
        )

    def candidates(self, index: int, negatives: int) -> Candidates:
        query, relevant, other = _read_triple(self.spans.place(index), self.spans.read(index))
        return Candidates(query, (relevant,), (other,))


def _read_triple(where: str, line: bytes) -> list[str]:
    columns = decoded(where, line).split("\t")
    if len(columns) != 3:
        raise InputError(
            f"{where}: {len(columns)} columns; triples have 3, separated by tabs: query relevant other"
        )
    for name, text in zip(("query", "relevant text", "other text"), columns, strict=True):
        if is_blank(text):
            raise InputError(f"{where}: the {name} is empty")
    return columns


def jsonl_set(path: Path, *, negatives: int = 1, seed: int = 0) -> TrainingSet:
    """Take lines `{"query": "…", "pos": ["…", …], "neg": ["…", …]}`; an epoch draws one `pos` and some `neg`.

    `pos_scores` and `neg_scores` are a teacher's scores, one for each text; all lines have them, or none.
    Other keys are ignored.
    Raises: InputError naming file and line if a line is malformed, or for no line; TrainingError if
        `negatives` is less than 1, or no query has a document of both kinds.
    """
    _at_least_one(negatives=negatives)
    spans, numbers, known = ByteSpans([path]), array("q"), KnownRelevant()
    reasons: Counter[str] = Counter()
    lines = repeating = 0
    taught = False
    for lines, (where, offset, line) in enumerate(raw_lines(path), start=1):
        listed = _Listed.read(where, line)
        if lines == 1:
            taught = listed.taught
        if listed.taught != taught:
            here, before = ("are missing", "have them") if taught else ("are given", "have none")
            raise InputError(f"{where}: 'pos_scores' and 'neg_scores' {here}; earlier lines {before}")
        for text, _ in listed.positives:
            known.add(listed.query, text)
        if not listed.positives:
            reasons["without a relevant document"] += 1
        elif not listed.negatives:
            reasons["without a negative"] += 1
        else:
            repeating += len(listed.negatives) < negatives
            spans.keep(0, offset, line)
            numbers.append(_line_number(where))
    if not lines:
        raise InputError(
            f'{path}: the file is empty; expected lines of {{"query": …, "pos": […], "neg": […]}}'
        )
    notes = _notes(reasons, lines, repeating, negatives)
    known.sort()
    return _Jsonl(_Files(path), notes, seed, spans, numbers, known, negatives)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A query with its documents, each with a teacher's score or None."""

    query: str
    positives: list[tuple[str, float | None]]
    negatives: list[tuple[str, float | None]]
    taught: bool

    @classmethod
    def read(cls, where: str, line: bytes) -> "_Listed":
        values = json_object(where, decoded(where, line))
        query = named_string(where, values, ["query"])
        if is_blank(query):
            raise InputError(f"{where}: 'query' is empty")
        scored = [name for name in ("pos_scores", "neg_scores") if values.get(name) is not None]
        if len(scored) == 1:
            raise InputError(f"{where}: {scored[0]!r} is given alone; a teacher scores 'pos' and 'neg'")
        positives, negatives = (
            list(_documents(where, values, name, bool(scored))) for name in ("pos", "neg")
        )
        return cls(query, positives, negatives, bool(scored))


def _documents(
    where: str, values: dict[str, Any], name: str, scored: bool
) -> Iterator[tuple[str, float | None]]:
    """Read the texts under a name, and their scores.

    Raises: InputError naming the place of a value that is neither.
    """
    texts = _list(where, values, name)
    for place, text in enumerate(texts):
        if is_blank(named_string(where, {f"{name}[{place}]": text}, [f"{name}[{place}]"])):
            raise InputError(f"{where}: '{name}[{place}]' is empty")
    if not scored:
        yield from ((text, None) for text in texts)
        return
    scores = _list(where, values, f"{name}_scores")
    if len(scores) != len(texts):
        raise InputError(
            f"{where}: '{name}_scores' has {len(scores)} numbers; {name!r} has {len(texts)} texts"
        )
    for place, (text, score) in enumerate(zip(texts, scores, strict=True)):
        if type(score) not in (int, float) or not abs(score) <= _LARGEST_SCORE:
            raise InputError(
                f"{where}: '{name}_scores[{place}]' is {repr(score)[:100]}; it must be finite in fp32"
            )
        yield text, float(score)


def _list(where: str, values: dict[str, Any], name: str) -> list[Any]:
    if name not in values:
        raise InputError(f"{where}: {name!r} is missing")
    if not isinstance(values[name], list):
        raise InputError(f"{where}: {name!r} must be a list, not {type(values[name]).__name__}")
    found: list[Any] = values[name]
    return found


@dataclass(frozen=True)
class _Jsonl(_FileSet):
    spans: ByteSpans
    numbers: "array[int]"
    known: KnownRelevant
    negatives: int

    def __len__(self) -> int:
        return len(self.numbers)

    def group(self, index: int, epoch: int) -> Group:
        listed = _Listed.read(self.spans.place(index), self.spans.read(index))
        query_id = str(self.numbers[index])
        chosen = _pick(listed.positives, listed.negatives, self.negatives, self.seed, epoch, query_id)
        documents = tuple(text for text, _ in chosen)
        return Group(
            query_id,
            listed.query,
            documents,
            tuple(score for _, score in chosen if score is not None) or None,
            keys=tuple(map(text_key, documents)),
            relevant=self.known.of(listed.query),
        )

    def candidates(self, index: int, negatives: int) -> Candidates:
        listed = _Listed.read(self.spans.place(index), self.spans.read(index))
        others = _few(listed.negatives, negatives, self.seed, str(self.numbers[index]))
        texts = (tuple(text for text, _ in some) for some in (listed.positives, others))
        return Candidates(listed.query, *texts)


def _pick(
    positives: Sequence[T], negatives: Sequence[T], count: int, seed: int, epoch: int, query_id: str
) -> list[T]:
    """Draw one positive and `count` negatives."""
    (first,) = drawn(1, len(positives), seed, epoch, query_id, "positive")
    return [positives[first], *_drawn_negatives(negatives, count, seed, epoch, query_id)]


def _few(negatives: Sequence[T], count: int, seed: int, query_id: str) -> list[T]:
    """Draw the negatives of the first epoch, each once."""
    return _drawn_negatives(negatives, min(count, len(negatives)), seed, 0, query_id)


def _drawn_negatives(negatives: Sequence[T], count: int, seed: int, epoch: int, query_id: str) -> list[T]:
    numbers = drawn(count, len(negatives), seed, epoch, query_id, "negative")
    return [negatives[number] for number in numbers]


def _chosen(queries: dict[str, str], query_ids: Collection[str] | None, path: Path) -> dict[str, str]:
    """Keep the queries in `query_ids`.

    Raises: TrainingError if `query_ids` names an unknown query or none.
    """
    if query_ids is None:
        return queries
    wanted = set(query_ids)
    if not wanted:
        raise TrainingError("query_ids is empty; it must name at least 1 query")
    if unknown := sorted(wanted - queries.keys()):
        raise TrainingError(f"query_ids: {unknown[0]!r} is not in {path} ({len(unknown):,} of them are not)")
    return {query_id: text for query_id, text in queries.items() if query_id in wanted}


def _at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise TrainingError(f"{name} is {number}; it must be at least 1")


def _line_number(where: str) -> int:
    return int(where.rpartition(":")[2])


def _notes(reasons: Counter[str], queries: int, repeating: int, negatives: int) -> list[str]:
    """Report how many queries are left out and why, and how many have too few negatives.

    Raises: TrainingError if no query remains.
    """
    notes = []
    if left_out := reasons.total():
        why = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
        if left_out == queries:
            raise TrainingError(f"none of {queries:,} queries can be trained on: {why}")
        notes.append(f"{left_out:,} of {queries:,} queries are left out: {why}")
    if repeating:
        notes.append(
            f"{repeating:,} of {queries:,} queries have fewer than {negatives} negatives, which repeat"
        )
    return notes
