"""Every model's runs: the server makes those of rankers, the others are there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farrank_loadtest.accuracy.candidates import load_candidates
from farrank_loadtest.accuracy.evaluation import ModelRuns
from farrank_loadtest.accuracy.models import RETRIEVER, Model, RankerModel
from farrank_loadtest.accuracy.parts import Part
from farrank_loadtest.accuracy.sweep import Sweep
from farrank_loadtest.trec import Run


@dataclass(frozen=True, slots=True)
class FirstStage:
    """Where candidates come from: the parts' own, with texts out of `collection`, or the server's `index`.

    `k` is how many the server looks for there; None leaves that to it.
    """

    collection: Sequence[Path] = ()
    skip_missing: bool = False
    index: str | None = None
    k: int | None = None


@dataclass(frozen=True, slots=True)
class Reranked:
    """The first stage's run of each part, the runs by ranker, and what a reader of figures must know."""

    retrieved: Sequence[Run]
    by_ranker: Mapping[str, Sequence[Run]]
    versions: Mapping[str, str]
    notes: Sequence[str]


async def rerank_models(
    sweep: Sweep, models: Sequence[Model], parts: Sequence[Part], first_stage: FirstStage
) -> Reranked:
    """Let the server rerank every part by every ranker of the models.

    Raises: LoadtestError as the sweep's; what was finished is written by then.
    """
    named = (ranker for model in models if isinstance(model, RankerModel) for ranker in model.rankers)
    rankers = list(dict.fromkeys(named))  # Two models may share a seed.
    versions = await sweep.versions(rankers)
    retrieved: list[Run] = []
    by_ranker: dict[str, list[Run]] = {ranker: [] for ranker in rankers}
    notes: list[str] = []
    for number, part in enumerate(parts, start=1):
        suffix = f".{number}" if len(parts) > 1 else ""
        if first_stage.index is not None:
            found, runs = await sweep.search(rankers, part.queries, first_stage.index, first_stage.k, suffix)
        else:
            found = part.candidates
            candidates, missing = load_candidates(
                found, part.queries, first_stage.collection, skip_missing=first_stage.skip_missing
            )
            notes += (
                [f"Reranked without what is missing, which the retriever's row has: {missing}."]
                if missing
                else []
            )
            runs = await sweep.rerank(rankers, candidates, suffix)
        retrieved.append(found)
        for ranker, run in zip(rankers, runs, strict=True):
            by_ranker[ranker].append(run)
    return Reranked(retrieved, by_ranker, versions, notes)


def gather(
    models: Sequence[Model], read: Mapping[str, tuple[tuple[Run, ...], ...]], reranked: Reranked | None
) -> list[ModelRuns]:
    """Put all runs under their models' names: the retriever's first, where anything was reranked."""
    runs = [ModelRuns(RETRIEVER, (tuple(reranked.retrieved),))] if reranked else []
    for model in models:
        if isinstance(model, RankerModel):
            made = reranked.by_ranker if reranked else {}
            runs.append(ModelRuns(model.name, tuple(tuple(made[ranker]) for ranker in model.rankers)))
        else:
            runs.append(ModelRuns(model.name, read[model.name]))
    return runs
