"""The compared models as the command line names them, and the test set's files.

A comma separates seeds, a plus the files of a test set with several parts:
`parade=parade-s1,parade-s2` names two rankers, `bm25=2019.trec+2020.trec` a run over two years.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from farrank_loadtest.depths import Depth, check_depths, depth_text, is_adaptive
from farrank_loadtest.errors import LoadtestError
from farrank_trec import Qrels, Run, qrels_by_id_prefix, read_qrels, read_queries, read_run
from farrank_trec.errors import InputError

T = TypeVar("T")
RETRIEVER = "Retriever"


# Model -> for each training seed, a run for each part of the test set.
Runs = Mapping[str, Sequence[Sequence[Run]]]


@dataclass(frozen=True, slots=True)
class Model:
    """A model, with a ranker of the server for each seed, or files of runs for each seed and part.

    Its rankers read with `depth`; None leaves it to the server.
    """

    name: str
    rankers: tuple[str, ...] = ()
    runs: tuple[tuple[Path, ...], ...] = ()
    depth: Depth | None = None


def parse_models(rankers_and_runs: Sequence[tuple[str, str]]) -> list[Model]:
    """Read the models, in the order given.

    Each is ("ranker", "RANKER") or ("ranker", "MODEL=RANKER,RANKER"), or ("run", "MODEL=FILE,FILE") or
    ("run", "MODEL=FILE+FILE").
    Raises: LoadtestError if a name is empty or appears twice. If anything is reranked, the name Retriever is
        reserved for the first stage.
    """
    models = []
    for kind, text in rankers_and_runs:
        if kind == "ranker":
            name, _, listed = text.rpartition("=")
            rankers = tuple(listed.split(","))
            if not all(rankers) or len(set(rankers)) < len(rankers) or (not name and len(rankers) > 1):
                raise LoadtestError(
                    f"ranker {text!r}: must be RANKER, or MODEL=RANKER,RANKER with each named once"
                )
            models.append(Model(name or rankers[0], rankers=rankers))
        else:
            name, _, listed = text.partition("=")
            seeds = tuple(tuple(seed.split("+")) for seed in listed.split(","))
            if not name or not all(file for seed in seeds for file in seed):
                raise LoadtestError(
                    f"run {text!r}: must be MODEL=FILE; a comma separates seeds, a plus a test set's parts"
                )
            models.append(Model(name, runs=tuple(tuple(map(Path, seed)) for seed in seeds)))
    names = [model.name for model in models]
    if any(model.rankers for model in models):
        names.append(RETRIEVER)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise LoadtestError(f"model {twice!r}: the name is taken; MODEL=… gives another")
    return models


def at_depths(
    models: Sequence[Model], depths: Sequence[Depth], not_adaptive: Collection[str]
) -> tuple[list[Model], dict[str, str]]:
    """Compare each model of rankers at each depth, as `MODEL DEPTH`; return the models, and each one's full.

    A model with a ranker that is not adaptive stays one model, without depth, if any of the depths is
    adaptive. The full of an adaptive model is the same model at depth `all`, if that is compared too.
    Raises: LoadtestError if a depth appears twice.
    """
    check_depths(depths)
    found: list[Model] = []
    fulls: dict[str, str] = {}
    any_adaptive = any(map(is_adaptive, depths))
    for model in models:
        if not (model.rankers and depths) or (
            any_adaptive and not set(model.rankers).isdisjoint(not_adaptive)
        ):
            found.append(model)
            continue
        for depth in depths:
            name = f"{model.name} {depth_text(depth)}"
            found.append(replace(model, name=name, depth=depth))
            if is_adaptive(depth) and "all" in depths:
                fulls[name] = f"{model.name} all"
    return found, fulls


def parse_baselines(texts: Sequence[str], names: Sequence[str], what: str = "baseline") -> dict[str, str]:
    """Read `MODEL=BASELINE`, and `BASELINE` for every model without its own baseline.

    A name may contain `=`. The retriever and the baselines themselves have no baseline unless a pair gives
    one. `what` names the flag in errors.
    Raises: LoadtestError if a name is not a model's, or two baselines are given for one model or for all.
    """
    pairs: dict[str, str] = {}
    for text in texts:
        model, baseline = _split_names(text, names)
        for name in filter(None, (model, baseline)):
            if name not in names:
                raise LoadtestError(f"{what} {text!r}: no model is called {name!r}, only {', '.join(names)}")
        if model in pairs:
            raise LoadtestError(f"{what} {text!r}: {model or 'every model'} has {pairs[model]!r} already")
        if model == baseline or not baseline:
            raise LoadtestError(f"{what} {text!r}: must be BASELINE, or MODEL=BASELINE with two names")
        pairs[model] = baseline
    common = pairs.pop("", None)
    without = {RETRIEVER, common, *pairs.values()}
    return {name: common for name in names if common is not None and name not in without} | pairs


def _split_names(text: str, names: Sequence[str]) -> tuple[str, str]:
    """Split `MODEL=BASELINE` so that both are names, if possible; the first is empty in `BASELINE`."""
    ends = [place for place, each in enumerate(text) if each == "="]
    splits = [("", text), *((text[:end], text[end + 1 :]) for end in reversed(ends))]
    known = ((one, other) for one, other in splits if other in names and (not one or one in names))
    return next(known, (text.rpartition("=")[0], text.rpartition("=")[2]))


# Given instead of a file of qrels if a document's id names the query that it answers.
DOC_ID_PREFIX = "doc-id-prefix"


@dataclass(frozen=True, slots=True)
class Part:
    """The queries to rerank, and the first stage's candidates unless the server finds them."""

    queries: Mapping[str, str]
    candidates: Run


@dataclass(frozen=True, slots=True)
class TestSet:
    """Parts to rerank and their judgements; `runs` are read from files; `notes` say what is left out."""

    qrels: Sequence[Qrels]
    parts: Sequence[Part]
    runs: Runs
    notes: Sequence[str]


def read_test_set(
    models: Sequence[Model],
    *,
    qrels: Sequence[str],
    candidates: Sequence[Path],
    queries: Sequence[Path],
    query_field: str,
    k: int | None,
) -> TestSet:
    """Read the test set; if there are qrels, only judged queries are reranked.

    The three lists correspond part by part, and may be empty. The candidates and every run are cut to the
    first `k` documents of each query; None takes all.
    Raises: InputError naming file and line; LoadtestError if the lists do not correspond.
    """
    counts = {"--qrels": len(qrels), "--candidates": len(candidates), "--queries": len(queries)}
    for model in models:
        counts |= {f"--run {model.name}": len(seed) for seed in model.runs if len(seed) != len(qrels)}
    if len({count for count in counts.values() if count}) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        raise LoadtestError(f"every part of a test set needs one file of each kind; there are: {told}")

    runs = {each.name: [[*map(read_run, seed)] for seed in each.runs] for each in models if each.runs}
    found = [read_run(path) for path in candidates]
    named = [found] if found else [seed for seeds in runs.values() for seed in seeds]
    judgements = [_judgements(source, [each[part] for each in named]) for part, source in enumerate(qrels)]
    notes = [
        f"Cut to depth {k:,} (--k): {name}, which has {depth:,}."
        for name, depth in depths(runs).items()
        if k is not None and depth > k
    ]
    parts = []
    for number, path in enumerate(queries):
        texts = read_queries(path, query_field)
        judged = judgements[number] if judgements else None
        run = found[number] if candidates else {}
        part = Part(_judged(texts, judged), _cut(_judged(run, judged), k))
        source, before, left = path, len(texts), len(part.queries)
        if candidates:
            source, before, left = candidates[number], len(run), len(part.candidates)
        if not left:
            raise InputError(f"{source}: none of its queries is judged")
        if left < before:
            notes.append(
                f"Queries of {source.name} not reranked because they have no judgement: {before - left:,}."
            )
        parts.append(part)
    cut = {name: [[_cut(run, k) for run in seed] for seed in seeds] for name, seeds in runs.items()}
    return TestSet(judgements, parts, cut, notes)


def depths(runs: Runs) -> dict[str, int]:
    """Give the largest number of documents that each model ranks for a query."""
    return {
        name: max((len(ranked) for seed in seeds for run in seed for ranked in run.values()), default=0)
        for name, seeds in runs.items()
    }


def _judgements(source: str, runs: Sequence[Run]) -> Qrels:
    if source != DOC_ID_PREFIX:
        return read_qrels(Path(source))
    if not runs:
        raise LoadtestError(f"--qrels {DOC_ID_PREFIX}: needs --candidates or --run, whose ids it reads")
    judged: Qrels = {}
    for run in runs:
        for query_id, grades in qrels_by_id_prefix(run).items():
            judged.setdefault(query_id, {}).update(grades)
    return judged


def _judged(by_query: Mapping[str, T], qrels: Qrels | None) -> dict[str, T]:
    return {query_id: each for query_id, each in by_query.items() if qrels is None or query_id in qrels}


def _cut(run: Run, k: int | None) -> Run:
    return {query_id: documents[:k] for query_id, documents in run.items()}
