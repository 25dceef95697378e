"""The field's measures, query by query, as trec_eval computes them.

One tool for all of them: others break ties between equal scores in other ways, and would score another order
than the one that the run has.
"""

from collections.abc import Sequence

import ir_measures
from ir_measures import Measure

from farrank_trec import Qrels, Run
from farrank_trec.errors import TrecError

DEFAULT_MEASURES = ("RR", "nDCG@10", "nDCG@20", "P@10", "P@20", "AP")

# measure -> query -> value
PerQuery = dict[str, dict[str, float]]

# What the mean of a measure over queries is called.
_MEANS = {"RR": "MRR", "AP": "MAP"}


def mean_name(measure: str) -> str:
    """Name the mean over queries: MRR for RR, MAP for AP, else the measure itself."""
    return _MEANS.get(measure, measure)


def parse_measures(names: Sequence[str]) -> list[Measure]:
    """Read measures by ir_measures' names, such as `nDCG@10` or `AP(rel=2)`; MRR and MAP are understood.

    Raises: TrecError if a name is none, stands twice, or is no measure of trec_eval's.
    """
    by_mean = {mean: measure for measure, mean in _MEANS.items()}
    measures: list[Measure] = []
    for name in names:
        try:
            measure = ir_measures.parse_measure(by_mean.get(name, name))
        except (ValueError, NameError, TypeError) as error:
            raise TrecError(
                f"measure {name!r}: not known; it must be named as {', '.join(DEFAULT_MEASURES)}"
            ) from error
        if not ir_measures.pytrec_eval.supports(measure):
            raise TrecError(
                f"measure {name!r}: trec_eval has none such (RR has no cutoff there; most others need one)"
            )
        if measure in measures:
            raise TrecError(f"measure {name!r}: stands twice")
        measures.append(measure)
    return measures


def evaluate(qrels: Qrels, run: Run, measures: Sequence[Measure]) -> PerQuery:
    """Compute the measures of every judged query; one that the run does not rank has 0.

    Graded judgements count as they are in nDCG; elsewhere grade 1 is relevant, unless the measure says `rel`.
    """
    scores = {query_id: {each.doc_id: each.score for each in ranked} for query_id, ranked in run.items()}
    values: PerQuery = {str(measure): {} for measure in measures}
    for metric in ir_measures.pytrec_eval.iter_calc(list(measures), qrels, scores):
        values[str(metric.measure)][metric.query_id] = float(metric.value)
    return values


def evaluate_pooled(parts: Sequence[tuple[Qrels, Run]], measures: Sequence[Measure]) -> PerQuery:
    """Compute the measures of several sets of queries as one: every query weighs the same.

    So the papers average TREC DL 2019-2021. Each part keeps its own judgements, since a query may stand in
    several with other documents; the queries are called `PART:QUERY_ID` then, parts counted from 1.
    """
    if len(parts) == 1:
        return evaluate(*parts[0], measures)
    pooled: PerQuery = {str(measure): {} for measure in measures}
    for number, (qrels, run) in enumerate(parts, start=1):
        for measure, values in evaluate(qrels, run, measures).items():
            pooled[measure].update((f"{number}:{query_id}", value) for query_id, value in values.items())
    return pooled
