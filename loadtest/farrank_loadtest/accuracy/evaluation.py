"""Make a report from runs and judgements: compare rankers, with paired tests against their baselines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from ir_measures import Measure
from scipy import stats

from farrank_loadtest.accuracy.accuracy_report import Cell, Evaluated, Kept, ModelRow, Report
from farrank_loadtest.accuracy.test_set import Runs, depths
from farrank_loadtest.errors import LoadtestError
from farrank_trec import Qrels
from farrank_trec.kept_shares import kept_shares
from farrank_trec.measures import PerQuery, evaluate_pooled

RESAMPLES = 9_999
# Differences below this are rounding errors of averaging over seeds.
_ROUNDING = 1e-12
# Resamples drawn at once: all at once would take a gigabyte for MS MARCO's dev queries.
_BATCH = 256


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """The measures, the queries that count, and the tests of differences.

    With `ranked_only`, only queries that every run ranks count; otherwise every judged query counts, as 0 for
    a run that lacks it, like `trec_eval -c`. `baselines` and `fulls` map a model to the one that it is
    compared with, and to the one whose share it keeps.
    """

    test_set: str
    measures: Sequence[Measure]
    baselines: Mapping[str, str]
    fulls: Mapping[str, str]
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
    """Evaluate every model's runs and compare them; return the report and the values by query.

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
    chance = (settings.resamples, settings.seed)
    rows = [
        replace(row, full=full, cells=_with_kept(row, evaluated, full, *chance)) if full else row
        for row in compare(evaluated, settings.baselines, resamples=chance[0], seed=chance[1])
        for full in [settings.fulls.get(row.model, "")]
    ]
    notes = [*notes]
    if left_out := judged - counted:
        notes.append(f"Judged queries left out because not every run ranks them: {left_out:,}.")
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
    """Name each model whose runs lack judged queries: its figures may be too low."""
    notes = []
    for name, seeds in models.items():
        missing = max(
            sum(len(judged.keys() - run.keys()) for judged, run in zip(qrels, seed, strict=True))
            for seed in seeds
        )
        if missing:
            notes.append(f"Judged queries that {name} does not rank and that count as 0: {missing:,}.")
    return notes


def _unequal_depths(models: Runs) -> list[str]:
    """Report unequal depths: a deeper list can find more, even in a worse order."""
    deep = depths(models)
    if len(set(deep.values())) < 2:
        return []
    told = ", ".join(f"{name} {depth:,}" for name, depth in deep.items())
    return [
        f"Ranked to unequal depths (at most, documents a query): {told}. Measures beyond the shallowest "
        "depth do not compare; --k cuts all runs."
    ]


def compare(
    models: Evaluated, baselines: Mapping[str, str], *, resamples: int = RESAMPLES, seed: int = 0
) -> list[ModelRow]:
    """Make the table's rows; `baselines` maps a model to its baseline."""
    rows = []
    for name, seeds in models.items():
        baseline = baselines.get(name, "")
        rivals = models.get(baseline)
        cells = {measure: _cell(seeds, rivals, measure, resamples, seed) for measure in seeds[0]}
        rows.append(ModelRow(name, baseline if rivals else "", cells))
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


def _with_kept(row: ModelRow, evaluated: Evaluated, full: str, resamples: int, seed: int) -> dict[str, Cell]:
    """Add the kept share of `full` to the cells of a row."""
    cells = {}
    for measure, cell in row.cells.items():
        base = _averaged(evaluated[full], measure)
        values = _averaged(evaluated[row.model], measure)
        pairs = list(values.values()), [base[query] for query in values]
        cells[measure] = replace(cell, kept=kept_share(*pairs, resamples=resamples, seed=seed))
    return cells


def kept_share(
    values: Sequence[float], full: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0
) -> Kept | None:
    """Give the share that a ranker keeps of full reading's mean; None if that mean is 0."""
    pairs = np.array([full, values], dtype=float)
    if not pairs[0].any():
        return None
    share, low, high = (float(each[1]) for each in kept_shares(pairs, resamples=resamples, seed=seed))
    return Kept(share, low, high)


def _averaged(seeds: Sequence[PerQuery], measure: str) -> dict[str, float]:
    """Average each query's values over the seeds."""
    return {query: fmean(each[measure][query] for each in seeds) for query in seeds[0][measure]}


def paired_tests(
    values: Sequence[float], baseline: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float | None, float | None]:
    """Test two rankers' values of the same queries: Student's paired t-test, and Fisher's randomisation.

    Both p-values are two-sided, and None for fewer than two queries.
    Randomisation swaps the two values of each query or not: in all ways if there are at most `resamples`,
    else in `resamples` ways drawn with `seed`. The caller averages the values of several training seeds.
    Source: Smucker, Allan & Carterette, CIKM 2007.
    """
    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    if len(differences) < 2:
        return None, None
    if np.abs(differences).max() < _ROUNDING:
        return 1.0, 1.0
    # For a single sample, "samples" flips the signs of the differences, which swaps the paired values.
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
        return 0.0  # the same difference for every query: no variance
    p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return 1.0 if math.isnan(p) else p
