"""What is compared, as the command line names it, and the test set's files.

A comma divides seeds, a plus the files of a test set that has several parts:
`parade=parade-s1,parade-s2` are rankers, `bm25=2019.trec+2020.trec` is a run over two years.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_loadtest.errors import LoadtestError
from farrank_trec import Qrels, Run, qrels_by_id_prefix, read_qrels, read_queries, read_run
from farrank_trec.errors import InputError

RETRIEVER = "Retriever"


@dataclass(frozen=True, slots=True)
class RankerModel:
    """A model that the server holds, as one ranker for each seed."""

    name: str
    rankers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunModel:
    """A model whose runs are there already: for each seed, a file for each part of the test set."""

    name: str
    seeds: tuple[tuple[Path, ...], ...]


Model = RankerModel | RunModel


def parse_rankers(text: str) -> RankerModel:
    """Read `RANKER` or `MODEL=RANKER,RANKER`.

    Raises: LoadtestError if a name is empty or stands twice.
    """
    name, _, listed = text.rpartition("=")
    rankers = tuple(listed.split(","))
    if not all(rankers) or len(set(rankers)) < len(rankers) or (not name and len(rankers) > 1):
        raise LoadtestError(f"ranker {text!r}: must be RANKER, or MODEL=RANKER,RANKER with each named once")
    return RankerModel(name or rankers[0], rankers)


def parse_runs(text: str) -> RunModel:
    """Read `MODEL=FILE,FILE` or `MODEL=FILE+FILE`.

    Raises: LoadtestError if the model or a file has no name.
    """
    name, _, listed = text.partition("=")
    seeds = [seed.split("+") for seed in listed.split(",")]
    if not name or not all(file for seed in seeds for file in seed):
        raise LoadtestError(
            f"run {text!r}: must be MODEL=FILE; a comma divides seeds, a plus the parts of a test set"
        )
    return RunModel(name, tuple(tuple(map(Path, seed)) for seed in seeds))


def parse_models(rankers_and_runs: Sequence[tuple[str, str]]) -> list[Model]:
    """Read what was asked for, as ("ranker", text) or ("run", text), in its order.

    Raises: LoadtestError as the two readers, and if two models have one name; where anything is reranked, the
        first stage's run has the name Retriever.
    """
    models: list[Model] = [
        parse_rankers(text) if kind == "ranker" else parse_runs(text) for kind, text in rankers_and_runs
    ]
    names = [model.name for model in models]
    if any(isinstance(model, RankerModel) for model in models):
        names.append(RETRIEVER)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LoadtestError(f"model {twice!r}: the name is taken; MODEL=… gives another")
    return models


def parse_baselines(texts: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Read `MODEL=BASELINE`, and `BASELINE` for every model that has no baseline of its own.

    The retriever and the baselines themselves are measured against nothing unless a pair says so.
    Raises: LoadtestError if a name is no model's, or two baselines are given for one model or for all.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        model, _, baseline = text.rpartition("=")
        for name in filter(None, (model, baseline)):
            if name not in names:
                raise LoadtestError(
                    f"baseline {text!r}: no model is called {name!r}, only {', '.join(names)}"
                )
        if model in pairs:
            raise LoadtestError(f"baseline {text!r}: {model or 'every model'} has {pairs[model]!r} already")
        if model == baseline or not baseline:
            raise LoadtestError(f"baseline {text!r}: must be BASELINE, or MODEL=BASELINE with two names")
        pairs[model] = baseline
    common = pairs.pop("", None)
    without = {RETRIEVER, common, *pairs.values()}
    return {name: common for name in names if common is not None and name not in without} | pairs


# Said instead of a file of qrels where a document's name says which query it answers.
DOC_ID_PREFIX = "doc-id-prefix"


@dataclass(frozen=True, slots=True)
class TestSetFiles:
    """Where a test set lies: the three lists go together, part by part, and may be empty.

    Of the candidates and of every run, the first `k` documents of each query are taken; None takes all.
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
    notes = [
        f"Cut to depth {files.k:,} (--depth): {name}, which has {depth:,}."
        for name, depth in depths(runs).items()
        if files.k is not None and depth > files.k
    ]
    runs = {
        name: tuple(tuple(_cut(run, files.k, None) for run in seed) for seed in seeds)
        for name, seeds in runs.items()
    }
    parts = []
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


def depths(runs: Mapping[str, Sequence[Sequence[Run]]]) -> dict[str, int]:
    """Count the documents that each model ranks for a query, at most."""
    return {
        name: max((len(ranked) for seed in seeds for run in seed for ranked in run.values()), default=0)
        for name, seeds in runs.items()
    }


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
