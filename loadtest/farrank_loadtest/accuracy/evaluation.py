"""From runs and judgements to a report: one test set, every model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ir_measures import Measure

from farrank_loadtest.accuracy.accuracy_report import Report
from farrank_loadtest.accuracy.comparison import Evaluated, compare
from farrank_loadtest.accuracy.test_set import Runs, depths
from farrank_loadtest.errors import LoadtestError
from farrank_trec import Qrels
from farrank_trec.measures import evaluate_pooled


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """What is computed, over which queries, and how differences are tested.

    With `ranked_only`, queries count that every run ranks; else every judged one does, with 0 where a run
    has nothing, as `trec_eval -c` has it.
    """

    test_set: str
    measures: Sequence[Measure]
    baselines: Mapping[str, str]
    alpha: float
    resamples: int
    seed: int
    ranked_only: bool


def evaluate_models(
    qrels: Sequence[Qrels],
    models: Runs,
    settings: EvaluationSettings,
    *,
    notes: Sequence[str],
    inputs: Mapping[str, Any],
) -> tuple[Report, Evaluated]:
    """Evaluate every model's runs and compare them; the values by query come beside the report.

    Raises: LoadtestError if no query is left to average over.
    """
    measures = settings.measures
    judged = sum(map(len, qrels))
    if settings.ranked_only:
        qrels = [_ranked(each, part, models) for part, each in enumerate(qrels)]
    counted = sum(map(len, qrels))
    if not counted:
        raise LoadtestError("no judged query is left to average over: runs and qrels share none")
    evaluated = {
        name: [evaluate_pooled(list(zip(qrels, seed, strict=True)), measures) for seed in seeds]
        for name, seeds in models.items()
    }
    rows = compare(evaluated, settings.baselines, resamples=settings.resamples, seed=settings.seed)
    notes = [*notes]
    if left_out := judged - counted:
        notes.append(f"Left out, as not every run ranks them: judged queries, {left_out:,}.")
    report = Report(
        test_set=settings.test_set,
        queries=counted,
        alpha=settings.alpha,
        measures=tuple(map(str, measures)),
        rows=tuple(rows),
        notes=(*notes, *_gaps(qrels, models), *_unequal_depths(models)),
        inputs=dict(inputs),
    )
    return report, evaluated


def _ranked(qrels: Qrels, part: int, models: Runs) -> Qrels:
    runs = [seed[part] for seeds in models.values() for seed in seeds]
    return {query_id: judged for query_id, judged in qrels.items() if all(query_id in run for run in runs)}


def _gaps(qrels: Sequence[Qrels], models: Runs) -> list[str]:
    """Name each model whose runs leave out judged queries: it is measured lower than it may be."""
    notes = []
    for name, seeds in models.items():
        missing = max(
            sum(len(judged.keys() - run.keys()) for judged, run in zip(qrels, seed, strict=True))
            for seed in seeds
        )
        if missing:
            notes.append(f"Judged but not ranked by {name}, so that they count 0: queries, {missing:,}.")
    return notes


def _unequal_depths(models: Runs) -> list[str]:
    """Name the depths where they differ: a deeper list can find more, whatever its order is worth."""
    deep = depths(models)
    if len(set(deep.values())) < 2:
        return []
    told = ", ".join(f"{name} {depth:,}" for name, depth in deep.items())
    return [
        f"Ranked to unequal depths (documents a query, at most): {told}. Measures that look beyond the "
        "shallowest do not compare; --depth cuts all."
    ]
