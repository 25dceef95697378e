"""Parity with torch's own runtime, without and with injected faults."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from farrank_exporters.parity import BeyondBound, Bound, Scores, bounds_for, measure, own_ndcg, reference
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.manifest import ExportParity, ExportPrecision
from farrank_rankers.features import Features
from farrank_rankers.files.open import open_ranker
from farrank_rankers.rank_correlation import kendall_tau
from farrank_rankers.ranker import Ranker
from farrank_runtimes.runtime import DocumentScores
from farrank_runtimes.torch_runtime import TorchRuntime
from support.exported_rankers import MEASURED

Fault = Callable[[list[float], list[list[float]]], None]


class Faulty(TorchRuntime):
    """Applies a function to the scores and evidence of all documents."""

    fault: Fault

    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        found = super().score(documents, queries)
        self.fault(found.scores, found.chunk_scores)
        return found


def ignore(line: str) -> None: ...


@pytest.fixture(scope="module", params=["maxp", "biencoder", "parade-transf-pretr-lateir", "cedr-knrm"])
def held(request: pytest.FixtureRequest, tiny_rankers: dict[str, Path]) -> tuple[Ranker, list[Scores]]:
    ranker = open_ranker(tiny_rankers[request.param])
    return ranker, reference(ranker, MEASURED, ignore)


def faulty(held: tuple[Ranker, list[Scores]], precision: ExportPrecision, fault: Fault) -> ExportParity:
    ranker, expected = held
    runtime = Faulty(ranker, device="cpu", threads=torch.get_num_threads())
    runtime.fault = fault
    return measure(ranker, runtime, MEASURED, expected, precision, ignore)


def test_the_ranker_itself_is_within_fp32(held: tuple[Ranker, list[Scores]]) -> None:
    parity = faulty(held, "fp32", lambda scores, evidence: None)
    assert (parity.runtime, parity.computed_in) == ("torch", "fp32")
    assert (parity.queries, parity.documents) == (2, 12)
    assert parity.max_difference <= (3e-4 if held[0].spec.family == "cedr-knrm" else 1e-5)
    assert parity.mean_difference <= parity.max_difference
    assert parity.kendall_tau == pytest.approx(1, abs=0.05)
    assert parity.spread == pytest.approx(np.mean([scores.std() for scores in held[1]]))


def test_a_shift_of_one_score_is_beyond_fp32(held: tuple[Ranker, list[Scores]]) -> None:
    def shift(scores: list[float], evidence: list[list[float]]) -> None:
        scores[0] += 0.01

    with pytest.raises(
        ExportError,
        match=r"with torch max_difference is 0.01\d* after 1 of 2 queries, but it must be max_diff",
    ):
        faulty(held, "fp32", shift)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_exceed_every_bound(
    held: tuple[Ranker, list[Scores]], precision: ExportPrecision, value: float
) -> None:
    def spoil_score(scores: list[float], evidence: list[list[float]]) -> None:
        scores[-1] = value

    def spoil_evidence(scores: list[float], evidence: list[list[float]]) -> None:
        evidence[-1][0] = float("nan")

    for fault in (spoil_score, spoil_evidence):
        with pytest.raises(BeyondBound, match=r"query 1, document 4 has the score (nan|inf)") as raised:
            faulty(held, precision, fault)
        assert raised.value.parity is None


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_a_scale_passes_where_the_ranking_counts_and_a_turn_does_not(
    held: tuple[Ranker, list[Scores]], precision: ExportPrecision
) -> None:
    def scale(scores: list[float], evidence: list[list[float]]) -> None:
        scores[:] = [3 * score for score in scores]

    def turn(scores: list[float], evidence: list[list[float]]) -> None:
        scores[:] = [-score for score in scores]

    assert faulty(held, precision, scale).kendall_tau > 0.9
    with pytest.raises(
        BeyondBound, match=r"kendall_tau is -\d.*, but it must be kendall_tau >= 0\.9"
    ) as raised:
        faulty(held, precision, turn)
    assert raised.value.parity is not None
    assert raised.value.parity.kendall_tau < -0.9


def test_bounds_follow_the_precision() -> None:
    scores = [np.array([-3.0, 0.0, 3.0])]
    assert bounds_for("bf16", "maxp", scores) == [Bound("kendall_tau", 0.98)]
    int8 = [Bound("kendall_tau", 0.95), Bound("worst_tau", 0.92), Bound("ndcg10", 0.995)]
    assert bounds_for("int8", "cedr-knrm", [np.arange(8.0)], unasked=True) == int8
    # Of few documents, one swap of neighbours alone would be beyond it.
    few = bounds_for("int8", "maxp", [np.arange(7.0)], unasked=True)[1]
    assert few.limit == pytest.approx(kendall_tau(np.arange(7.0), np.array([1.0, 0, 2, 3, 4, 5, 6])))
    [bound] = bounds_for("fp32", "maxp", scores, unasked=True)
    assert bound.measure == "max_difference"
    assert bound.limit == pytest.approx(1e-4 * 6**0.5)
    [least] = bounds_for("fp32", "maxp", [np.zeros(3)])
    assert least.limit == 1e-5
    [of_tokens] = bounds_for("fp32", "cedr-knrm", [np.zeros(3)])
    assert of_tokens.limit == 3e-4


def test_own_ndcg_weighs_the_top() -> None:
    """With a depth of 2 the grades are 2, 1 and 0, with more 10, 9 and 8; discounts are 1, 1/log2(3), 1/2."""
    first, second = np.array([3.0, 2.0, 1.0]), 1 / np.log2(3)
    assert own_ndcg(first, 10 * first, 2) == 1
    assert own_ndcg(first, np.array([2.0, 3.0, 1.0]), 2) == pytest.approx((1 + 2 * second) / (2 + second))
    assert own_ndcg(first, np.array([3.0, 1.0, 2.0]), 2) == pytest.approx(2 / (2 + second))
    assert own_ndcg(first, first[::-1], 10) == pytest.approx((8 + 9 * second + 5) / (10 + 9 * second + 4))


def test_an_order_that_is_wrong_at_the_top_is_beyond_its_bound(tiny_rankers: dict[str, Path]) -> None:
    """Kendall's tau hardly notices two neighbours that have changed their places."""
    ranker = open_ranker(tiny_rankers["maxp"])
    expected = reference(ranker, MEASURED, ignore)
    for scores in expected:
        best, second = np.argsort(-scores)[:2]
        scores[[best, second]] = scores[[second, best]]
    torch_alone = TorchRuntime(ranker, device="cpu", threads=torch.get_num_threads())
    parity = measure(ranker, torch_alone, MEASURED, expected, "int8", ignore)
    assert parity.kendall_tau > 0.95
    assert parity.bound == "kendall_tau >= 0.95"
    with pytest.raises(BeyondBound, match=r"ndcg10 is 0\.98\d*.*, but it must be ndcg10 >= 0\.995"):
        measure(ranker, torch_alone, MEASURED, expected, "int8", ignore, unasked=True)


def test_one_query_that_lost_its_order_is_beyond_its_bound(tiny_rankers: dict[str, Path]) -> None:
    """The mean of two queries hides that one ranking changed, below the best documents."""
    ranker = open_ranker(tiny_rankers["maxp"])
    expected = reference(ranker, MEASURED, ignore)
    order = np.argsort(-expected[0])
    for better, worse in ((6, 7), (8, 9), (10, 11)):
        pair = order[[better, worse]]
        expected[0][pair] = expected[0][pair[::-1]]
    torch_alone = TorchRuntime(ranker, device="cpu", threads=torch.get_num_threads())
    parity = measure(ranker, torch_alone, MEASURED, expected, "int8", ignore)
    assert parity.kendall_tau > 0.95
    assert parity.worst_tau == pytest.approx(1 - 2 * 3 / 66)
    with pytest.raises(BeyondBound, match=r"worst_tau is 0\.909 after 1 of 2 queries, .* >= 0\.92"):
        measure(ranker, torch_alone, MEASURED, expected, "int8", ignore, unasked=True)


def test_a_ranker_without_numbers_can_hold_nothing(tiny_rankers: dict[str, Path]) -> None:
    ranker = open_ranker(tiny_rankers["maxp"])
    with torch.no_grad():
        next(ranker.aggregator.parameters()).fill_(torch.nan)
    with pytest.raises(ExportError, match="the ranker itself gives scores that are not finite"):
        reference(ranker, MEASURED, ignore)
