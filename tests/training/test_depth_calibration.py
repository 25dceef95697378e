"""Calibration finds the cheapest plan that keeps the bound, and confirms it on other queries."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from farrank_rankers.chunking import WHOLE_DOCUMENT, Chunking
from farrank_rankers.depth.plan import DepthPlan, Round
from farrank_rankers.features import Features
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_training.depth_calibration import calibrate
from farrank_training.errors import TrainingError
from farrank_training.validation import ValidationSet
from support.training_groups import MakeRanker, Texts

pytestmark = pytest.mark.usefixtures("one_thread")

# Chunks of 8 tokens. BM25 orders them as they are numbered; only the last one may hold the word that decides.
FILLER = "text " * 8
BEST = ["search engine search engine " + "text " * 4, "search engine " + "text " * 6]


def document(decides: bool, place: int) -> str:
    """Put a chunk that may decide at a place of BM25's order, counted from 1; it is the last of the text."""
    before = [BEST[min(number, 1)] for number in range(place - 1)]
    return FILLER * 2 + "".join(before) + ("search score " if decides else "search text ") + "text " * 6


class Marked(nn.Module):
    """Encodes a chunk as whether it holds a token."""

    def __init__(self, token: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.tensor(float(token)))

    def forward(self, input_ids: Tensor, roles: Tensor, token_type_ids: Tensor) -> Features:
        return Features((input_ids == int(self.token)).any(dim=1).float()[:, None])


class First(nn.Module):
    """Scores a chunk by its vector's first number."""

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors[..., 0]


@pytest.fixture
def ranker(make_ranker: MakeRanker) -> Ranker:
    """A ranker that prefers documents with the word `score`, whose chunks of 8 tokens do not overlap."""
    found = make_ranker("maxp")
    reader = found.reader
    spec = replace(reader.spec, chunking=Chunking("sliding", 8, 8, WHOLE_DOCUMENT))
    found.reader = Reader(spec, reader.tokenizer, reader.backbone)
    found.encoder = Marked(int(reader.tokenizer.ids("score")[0]))  # type: ignore[assignment]
    found.aggregator.head = First()
    return found


def judged(places: list[int]) -> ValidationSet:
    """Make queries whose relevant document is decided by the chunk at a place of BM25's order.

    The relevant document loses every tie.
    """
    texts = Texts()
    for number, place in enumerate(places):
        texts |= {f"{name}{number}": document(name == "a", place) for name in "abc"}
    queries = {f"q{number}": "search engine" for number in range(len(places))}
    return ValidationSet(
        queries,
        {f"q{number}": {f"a{number}": 1} for number in range(len(places))},
        {f"q{number}": [f"{name}{number}" for name in "cba"] for number in range(len(places))},
        texts,
    )


def test_three_chunks_are_the_cheapest_that_are_enough(ranker: Ranker) -> None:
    seen: list[int] = []
    plan = calibrate(ranker, judged([3] * 60), keep=0.97, measure="RR", progress=seen.append)
    assert replace(plan, figures=None) == DepthPlan((Round(1.0, 3),))
    figures = plan.figures
    assert figures is not None
    assert (figures.measure, figures.keep, figures.queries) == ("MRR", 0.97, 30)
    assert (figures.kept, figures.low, figures.high) == (1.0, 1.0, 1.0)
    # Three chunks of 8 tokens, each with a query of 2 and three special tokens.
    assert (figures.chunks, figures.tokens) == (3.0, 3 * 13.0)
    assert seen == list(range(1, 61))


def test_a_lower_bound_needs_fewer_chunks(ranker: Ranker) -> None:
    # Without the chunk that decides, the relevant document is the last of three.
    plan = calibrate(ranker, judged([3] * 60), keep=0.3, measure="RR")
    assert plan.rounds == (Round(1.0, 1),)
    assert plan.figures is not None
    assert plan.figures.kept == pytest.approx(1 / 3)


def test_two_rounds_are_chosen_if_they_are_cheaper(ranker: Ranker) -> None:
    some = judged([2] * 60)
    # The relevant document comes first in the first round: it is read on.
    for number in range(60):
        some.candidates[f"q{number}"].reverse()
    plan = calibrate(ranker, some, keep=0.97, measure="RR")
    assert plan.rounds == (Round(1.0, 1), Round(0.5, 1))
    assert plan.figures is not None
    assert plan.figures.chunks == pytest.approx(5 / 3)


def test_a_bound_that_no_plan_keeps_is_refused(ranker: Ranker) -> None:
    with pytest.raises(TrainingError, match=r"97.0% of MRR: .* a smaller bound is needed"):
        calibrate(ranker, judged([14] * 60), keep=0.97, measure="RR")


def test_an_uncertain_plan_says_how_many_queries_are_needed(ranker: Ranker) -> None:
    with pytest.raises(TrainingError, match=r"about [\d,]+ judged queries in all are needed") as raised:
        calibrate(ranker, judged([14] + [3] * 59), keep=0.97, measure="RR")
    assert "on 30 queries, with a lower bound of 9" in str(raised.value)


def test_few_queries_are_refused(ranker: Ranker) -> None:
    with pytest.raises(TrainingError, match=r"49 queries .* needs at least 50"):
        calibrate(ranker, judged([3] * 49), keep=0.97, measure="RR")


def test_a_ranker_of_one_chunk_is_refused(make_ranker: MakeRanker) -> None:
    with pytest.raises(TrainingError, match="depth cannot be calibrated: family firstp scores"):
        calibrate(make_ranker("firstp"), judged([3] * 60), keep=0.97, measure="RR")


@pytest.mark.parametrize("family", ["parade-attn", "parade-transf-rand", "cedr-knrm"])
def test_every_aggregator_scores_its_subsets(make_ranker: MakeRanker, family: str) -> None:
    # All documents have one chunk, so that one is enough.
    some = judged([1] * 50)
    some.texts = Texts({doc_id: doc_id for doc_id in some.texts})
    plan = calibrate(make_ranker(family), some, keep=0.97, measure="nDCG@10")
    assert plan.rounds == (Round(1.0, 1),)
