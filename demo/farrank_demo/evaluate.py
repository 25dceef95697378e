"""How well the first stage and the reranked lists answer the judged questions."""

from collections.abc import Iterator, Mapping

import ir_measures
from ir_measures import RR, nDCG

from farrank_client import Ranking

MEASURES = (nDCG @ 10, RR @ 10)

# What ir_measures reads: query id -> document id -> score.
Run = dict[str, dict[str, float]]


def runs(rankings: Mapping[str, Ranking]) -> dict[str, Run]:
    """Take both orders out of the same answers, by the name they are printed under.

    Ranks, not scores, are handed on: equal scores then keep the order that a user would see.
    """
    first_stage: Run = {}
    reranked: Run = {}
    for query_id, ranking in rankings.items():
        first_stage[query_id] = {result.id: -float(result.index) for result in ranking.results}
        reranked[query_id] = {result.id: -float(place) for place, result in enumerate(ranking.results)}
    return {"Lucene (BM25)": first_stage, "reranked": reranked}


def figures(qrels: Mapping[str, Mapping[str, int]], run: Run) -> Iterator[tuple[str, float]]:
    """Average each measure over all judged questions; RR counts grades 1 and 2 as relevant."""
    averages = ir_measures.calc_aggregate(MEASURES, qrels, run)
    for measure in MEASURES:
        yield str(measure).replace("RR", "MRR"), averages[measure]
