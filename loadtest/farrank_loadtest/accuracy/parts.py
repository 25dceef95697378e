"""The test set as its files have it: one part, or several that are averaged over as one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_loadtest.accuracy.models import Model, RunModel
from farrank_loadtest.errors import InputError, LoadtestError
from farrank_loadtest.trec import Qrels, Run, qrels_by_id_prefix, read_qrels, read_queries, read_run

# Said instead of a file of qrels where a document's name says which query it answers.
DOC_ID_PREFIX = "doc-id-prefix"


@dataclass(frozen=True, slots=True)
class TestSetFiles:
    """Where a test set lies: the three lists go together, part by part, and may be empty.

    Of the candidates, the first `k` of each query are taken; None takes all.
    """

    qrels: Sequence[str]
    candidates: Sequence[Path] = ()
    queries: Sequence[Path] = ()
    query_field: str = ""
    k: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What is to be reranked: queries, and the first stage's candidates unless the server finds them."""

    queries: Mapping[str, str]
    candidates: Run


@dataclass(frozen=True, slots=True)
class TestSet:
    """Parts to rerank and the judgements of each; `runs` has what was given as files, by model and seed.

    `notes` say what is left out.
    """

    qrels: Sequence[Qrels]
    parts: Sequence[Part]
    runs: Mapping[str, tuple[tuple[Run, ...], ...]]
    notes: Sequence[str]


def read_test_set(files: TestSetFiles, models: Sequence[Model]) -> TestSet:
    """Read all of it; where there are qrels, only what they judge is left to be reranked.

    Raises: InputError naming file and line; LoadtestError if the parts do not go together.
    """
    _check_counts(files, models)
    runs = {
        each.name: tuple(tuple(map(read_run, seed)) for seed in each.seeds)
        for each in models
        if isinstance(each, RunModel)
    }
    candidates = [read_run(path) for path in files.candidates]
    named = [candidates] if candidates else [seed for seeds in runs.values() for seed in seeds]
    qrels = [_judgements(source, [each[part] for each in named]) for part, source in enumerate(files.qrels)]
    parts, notes = [], []
    for number, path in enumerate(files.queries):
        judged = qrels[number] if qrels else None
        queries = read_queries(path, files.query_field)
        wanted = {
            query_id: text for query_id, text in queries.items() if judged is None or query_id in judged
        }
        kept = _cut(candidates[number], files.k, judged) if candidates else {}
        if not (kept if candidates else wanted):
            raise InputError(f"{files.candidates[number] if candidates else path}: no query of it is judged")
        all_of_them, left = (candidates[number], kept) if candidates else (queries, wanted)
        if unjudged := len(all_of_them) - len(left):
            source = files.candidates[number] if candidates else path
            notes.append(
                f"Not reranked, as nothing is judged for them: queries of {source.name}, {unjudged:,}."
            )
        parts.append(Part(wanted, kept))
    return TestSet(qrels, parts, runs, notes)


def _check_counts(files: TestSetFiles, models: Sequence[Model]) -> None:
    given = {
        "--qrels": len(files.qrels),
        "--candidates": len(files.candidates),
        "--queries": len(files.queries),
    }
    given |= {
        f"--run {each.name}": len(seed)
        for each in models
        if isinstance(each, RunModel)
        for seed in each.seeds
        if len(seed) != len(files.qrels)
    }
    given = {name: count for name, count in given.items() if count}
    if len(set(given.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in given.items())
        raise LoadtestError(f"every part of a test set needs one file of each kind; there are: {told}")


def _judgements(source: str, runs: Sequence[Run]) -> Qrels:
    if source != DOC_ID_PREFIX:
        return read_qrels(Path(source))
    if not runs:
        raise LoadtestError(f"--qrels {DOC_ID_PREFIX}: needs --candidates or --run, whose names it reads")
    judged: Qrels = {}
    for run in runs:
        for query_id, grades in qrels_by_id_prefix(run).items():
            judged.setdefault(query_id, {}).update(grades)
    return judged


def _cut(run: Run, k: int | None, judged: Qrels | None) -> Run:
    return {
        query_id: documents[:k] for query_id, documents in run.items() if judged is None or query_id in judged
    }
