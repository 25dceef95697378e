"""Let rankers order candidates under every condition; measure the reciprocal rank of each relevant one."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from farrank_experiments.pairs import PairFeatures, scores_of
from farrank_experiments.questions import Arrangement, AskedQuestion
from farrank_rankers.aggregate import Aggregator

# Condition -> question -> reciprocal rank.
Values = dict[str, dict[str, float]]
# A question -> scores of its documents by ranker, (D,) each.
Scoring = Callable[[AskedQuestion], Callable[[Sequence[Arrangement]], Mapping[str, Tensor]]]
_FILE = "values.json"


def reciprocal_rank(scores: Tensor, relevant: int) -> float:
    """Give 1 / rank of a candidate; with equal scores, the mean over all their orders.

    Equal scores are common here: FirstP gives them to documents that begin with the same passage.
    Shapes: (D,).
    """
    # The last digits of a passage's score depend on its position in the batch.
    equal = torch.isclose(scores, scores[relevant], rtol=1e-5, atol=1e-6)
    above = int(((scores > scores[relevant]) & ~equal).sum())
    return fmean(1 / (above + place) for place in range(1, int(equal.sum()) + 1))


def by_aggregators(aggregators: Mapping[str, Aggregator[Any]], features: PairFeatures) -> Scoring:
    """Let aggregators score documents from features of their passages, read once for all aggregators."""
    for aggregator in aggregators.values():
        aggregator.eval()

    def scoring(question: AskedQuestion) -> Callable[[Sequence[Arrangement]], Mapping[str, Tensor]]:
        read = features(question)
        return lambda documents: {
            name: scores_of(aggregator, read, documents) for name, aggregator in aggregators.items()
        }

    return scoring


def ask(
    scoring: Scoring,
    questions: Sequence[AskedQuestion],
    progress: Callable[[str], None] = lambda said: None,
) -> dict[str, Values]:
    """Let rankers order the candidates of every question under each of its conditions.

    Raises: ValueError if a score is NaN.
    """
    values: dict[str, Values] = {}
    for number, question in enumerate(questions, start=1):
        with torch.inference_mode():
            scores_of_documents = scoring(question)
            for condition, documents in question.conditions.items():
                for name, scores in scores_of_documents(documents).items():
                    if bool(scores.isnan().any()):
                        raise ValueError(f"{name}: a score of question {question.query_id} is NaN")
                    of_condition = values.setdefault(name, {}).setdefault(condition, {})
                    of_condition[question.query_id] = reciprocal_rank(scores, question.relevant)
        if number % 20 == 0 or number == len(questions):
            progress(f"{number:,} of {len(questions):,} questions")
    return values


def write_values(folder: Path, values: Mapping[str, Values]) -> None:
    """Write the values of rankers, by name."""
    (folder / _FILE).write_text(json.dumps(values), encoding="utf-8")


def read_values(folder: Path) -> dict[str, Values]:
    """Read the file of `write_values`."""
    values: dict[str, Values] = json.loads((folder / _FILE).read_text(encoding="utf-8"))
    return values
