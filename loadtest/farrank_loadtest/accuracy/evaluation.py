"""From runs and judgements to a report: rankers side by side, tested in pairs against their baselines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from ir_measures import Measure
from scipy import stats

from farrank_loadtest.accuracy.accuracy_report import Cell, Evaluated, Report, Row
from farrank_loadtest.accuracy.test_set import Runs, depths
from farrank_loadtest.errors import LoadtestError
from farrank_trec import Qrels
from farrank_trec.measures import PerQuery, evaluate_pooled

RESAMPLES = 9_999
# What averaging over seeds leaves of a difference that is none.
_ROUNDING = 1e-12
# Resamples are drawn so many at once: all at once would take a gigabyte for MS MARCO's dev queries.
_BATCH = 256


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
        by_part = zip(*(seed for seeds in models.values() for seed in seeds), strict=True)
        qrels = [
            {query: grades for query, grades in each.items() if all(query in run for run in runs)}
            for each, runs in zip(qrels, by_part, strict=True)
        ]
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


def compare(
    models: Evaluated, baselines: Mapping[str, str], *, resamples: int = RESAMPLES, seed: int = 0
) -> list[Row]:
    """Make the table's rows; `baselines` maps a model to the one that it is measured against."""
    rows = []
    for name, seeds in models.items():
        baseline = baselines.get(name, "")
        rivals = models.get(baseline)
        cells = {measure: _cell(seeds, rivals, measure, resamples, seed) for measure in seeds[0]}
        rows.append(Row(name, baseline if rivals else "", cells))
    return rows


def _cell(
    seeds: Sequence[PerQuery], rivals: Sequence[PerQuery] | None, measure: str, resamples: int, seed: int
) -> Cell:
    values = _averaged(seeds, measure)
    mean, by_seed = fmean(values.values()), tuple(fmean(each[measure].values()) for each in seeds)
    if rivals is None:
        return Cell(mean, by_seed)
    base = _averaged(rivals, measure)
    base_mean = fmean(base.values())
    pairs = list(values.values()), [base[query] for query in values]
    gain = mean / base_mean - 1 if base_mean else None
    return Cell(mean, by_seed, gain, *paired_tests(*pairs, resamples=resamples, seed=seed))


def _averaged(seeds: Sequence[PerQuery], measure: str) -> dict[str, float]:
    """Average each query's values over the seeds."""
    return {query: fmean(each[measure][query] for each in seeds) for query in seeds[0][measure]}


def paired_tests(
    values: Sequence[float], baseline: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float | None, float | None]:
    """Test the same queries' values of two rankers: Student's paired t-test, and Fisher's randomisation.

    Both p-values are two-sided, and None where fewer than two queries leave nothing to test.
    Randomisation swaps the two values of each query or not: all ways if there are at most `resamples`, else
    so many drawn with `seed`. Values of several training seeds are averaged for each query beforehand.
    Source: Smucker, Allan & Carterette, CIKM 2007.
    """
    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    if len(differences) < 2:
        return None, None
    if np.abs(differences).max() < _ROUNDING:
        return 1.0, 1.0
    # Of a single sample, "samples" flips the signs of its differences: just the swaps that are meant.
    randomised = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=_BATCH,
        rng=np.random.default_rng(seed),
    )
    return _t_test(differences), float(randomised.pvalue)


def _t_test(differences: np.ndarray) -> float:
    if np.ptp(differences) < _ROUNDING:
        return 0.0  # The same difference everywhere: no spread that could have brought it about.
    p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return 1.0 if math.isnan(p) else p
