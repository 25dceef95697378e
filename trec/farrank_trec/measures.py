"""The field's measures, query by query, as trec_eval computes them.

One tool computes all of them: others break ties between equal scores differently, and would measure another
order than the run's.
"""

from collections.abc import Sequence

import ir_measures
from ir_measures import Measure

from farrank_trec import Qrels, Run
from farrank_trec.errors import TrecError

DEFAULT_MEASURES = ("RR", "nDCG@10", "nDCG@20", "P@10", "P@20", "AP")

# measure -> query -> value
PerQuery = dict[str, dict[str, float]]

# Measure -> name of its mean over queries.
_MEANS = {"RR": "MRR", "AP": "MAP"}


def mean_name(measure: str) -> str:
    """Name the mean over queries: MRR for RR, MAP for AP, else the measure itself."""
    return _MEANS.get(measure, measure)


def parse_measures(names: Sequence[str]) -> list[Measure]:
    """Read measures by ir_measures' names, such as `nDCG@10` or `AP(rel=2)`; MRR and MAP work too.

    Raises: TrecError if a name is unknown, appears twice, or trec_eval does not compute the measure.
    """
    by_mean = {mean: measure for measure, mean in _MEANS.items()}
    measures: list[Measure] = []
    for name in names:
        try:
            measure = ir_measures.parse_measure(by_mean.get(name, name))
        except (ValueError, NameError, TypeError) as error:
            raise TrecError(
                f"measure {name!r}: unknown; examples of names: {', '.join(DEFAULT_MEASURES)}"
            ) from error
        if not ir_measures.pytrec_eval.supports(measure):
            raise TrecError(
                f"measure {name!r}: not in trec_eval (RR has no cutoff there; most others need one)"
            )
        if measure in measures:
            raise TrecError(f"measure {name!r}: appears twice")
        measures.append(measure)
    return measures


def evaluate(qrels: Qrels, run: Run, measures: Sequence[Measure]) -> PerQuery:
    """Compute the measures of every judged query; a query that the run does not rank has 0.

    nDCG uses the grades; in other measures grades from 1 are relevant, unless the measure sets `rel`.
    """
    scores = {query_id: {each.doc_id: each.score for each in ranked} for query_id, ranked in run.items()}
    values: PerQuery = {str(measure): {} for measure in measures}
    for metric in ir_measures.pytrec_eval.iter_calc(list(measures), qrels, scores):
        values[str(metric.measure)][metric.query_id] = float(metric.value)
    return values


def evaluate_pooled(parts: Sequence[tuple[Qrels, Run]], measures: Sequence[Measure]) -> PerQuery:
    """Compute the measures of several sets of queries together, with equal weight for every query.

    The papers average TREC DL 2019-2021 like this. Each part keeps its own judgements, because a query may be
    in several parts with other documents; queries are named `PART:QUERY_ID`, parts counted from 1.
    """
    if len(parts) == 1:
        return evaluate(*parts[0], measures)
    pooled: PerQuery = {str(measure): {} for measure in measures}
    for number, (qrels, run) in enumerate(parts, start=1):
        for measure, values in evaluate(qrels, run, measures).items():
            pooled[measure].update((f"{number}:{query_id}", value) for query_id, value in values.items())
    return pooled
