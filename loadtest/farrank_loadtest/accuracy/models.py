"""What is compared, as it is named on the command line: a model, the seeds it was trained with, and its runs.

A comma divides seeds, a plus the files of a test set that has several parts:
`parade=parade-s1,parade-s2` are rankers, `bm25=2019.trec+2020.trec` is a run over two years.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_loadtest.errors import LoadtestError

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
