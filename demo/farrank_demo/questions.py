"""The demo's questions, their judgements (see JUDGING.md), and measures of rankings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ir_measures
from ir_measures import RR, nDCG

from farrank_client import Client, Ranking
from farrank_trec import Qrels, read_qrels, read_queries

QUESTIONS, QRELS = (Path(__file__).with_name(name) for name in ("questions.tsv", "qrels.txt"))


@dataclass(frozen=True, slots=True)
class Question:
    """A programmer's question."""

    query_id: str
    text: str


def load_questions() -> list[Question]:
    """Every question, in the order of the file."""
    return [Question(*each) for each in read_queries(QUESTIONS).items()]


def load_qrels() -> Qrels:
    """Query id to judged document to grade: 2 answers the question, 1 helps in part."""
    return read_qrels(QRELS)


def ask(
    client: Client,
    questions: Sequence[Question],
    k: int,
    *,
    ranker: str | None = None,
    timeout_s: float,
    progress: Callable[[int], None],
) -> dict[str, Ranking]:
    """Ask one question after the other, with `k` candidates each; `ranker` None means the default ranker."""
    rankings: dict[str, Ranking] = {}
    for number, question in enumerate(questions, start=1):
        rankings[question.query_id] = client.search_and_rerank(
            question.text, k=k, ranker=ranker, timeout_s=timeout_s
        )
        progress(number)
    return rankings


MEASURES = (nDCG @ 10, RR @ 10)

# ir_measures' form: query id -> document id -> score.
Run = dict[str, dict[str, float]]


FIRST_STAGE, RERANKED = "Lucene (BM25)", "reranked"


def runs(rankings: Mapping[str, Ranking]) -> dict[str, Run]:
    """Take both orders from the same answers, by the names under which they are printed.

    The values are ranks, not scores, so equal scores keep the order that a user would see.
    """
    first_stage: Run = {}
    reranked: Run = {}
    for query_id, ranking in rankings.items():
        first_stage[query_id] = {result.id: -float(result.index) for result in ranking.results}
        reranked[query_id] = {result.id: -float(place) for place, result in enumerate(ranking.results)}
    return {FIRST_STAGE: first_stage, RERANKED: reranked}


def figures(qrels: Mapping[str, Mapping[str, int]], run: Run) -> Iterator[tuple[str, float]]:
    """Average each measure over all judged questions; RR counts grades 1 and 2 as relevant."""
    averages = ir_measures.calc_aggregate(MEASURES, qrels, run)
    for measure in MEASURES:
        yield str(measure).replace("RR", "MRR"), averages[measure]
