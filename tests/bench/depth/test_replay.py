"""Selectors, scores and measures on small arrays whose results are known."""

from collections.abc import Callable
from itertools import permutations
from statistics import fmean

import numpy as np
import pytest

from farrank_bench.depth.replay import (
    BINS,
    attended_score,
    bins,
    gains_by_place,
    interval,
    learned_prior,
    max_score,
    min_max,
    ndcg_at_10,
    of_chunks,
    reciprocal_rank,
)
from farrank_rankers.depth.plan import Round
from farrank_rankers.depth.replay import Mask, read_in_rounds
from farrank_rankers.depth.selection import Floats
from farrank_trec import rank
from farrank_trec.measures import evaluate, parse_measures


def array(*rows: object) -> Floats:
    return np.array(rows, dtype=np.float64)


def test_a_chunk_has_the_best_score_of_the_windows_that_half_coincide_with_it() -> None:
    windows = np.array([[0, 200], [150, 350], [300, 400]])
    chunks = np.array([[0, 128], [128, 256], [256, 384], [384, 400]])
    found = of_chunks(array(0.5, 0.9, 0.1), windows, chunks)
    assert found == pytest.approx([0.5, 0.9, 0.9, 0.1], abs=2e-3)
    # Both middle chunks have the second window; the other windows cover more of the third one.
    assert found[1] > found[2]


def test_min_max_counts_only_chunks() -> None:
    mask = np.array([[True, True], [True, False]])
    assert min_max(array([2.0, 4.0], [3.0, -9.0]), mask).tolist() == [[0.0, 1.0], [0.5, 0.0]]
    assert min_max(array([2.0, 2.0], [2.0, 5.0]), mask).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_bins_double_in_size() -> None:
    assert bins(np.arange(9)).tolist() == [0, 1, 1, 2, 2, 2, 2, 3, 3]
    assert bins(np.array([10**6])).tolist() == [BINS - 1]


def test_the_prior_prefers_places_that_decide_more_often_than_chance() -> None:
    prior = learned_prior([0, 0, 0, 5], [7, 7, 7, 7])
    # Four documents of seven chunks: chance puts 4/7 of the deciding chunks into the first bin.
    assert prior[0] == pytest.approx(np.log(4 / (4 / 7 + 1)))
    assert prior[1] < 0
    assert prior[3] == 0


@pytest.mark.parametrize(("combine", "numbers"), [(max_score, 1), (attended_score, 2)])
def test_reading_everything_gives_the_scores_of_everything(
    combine: Callable[[Floats, Mask], Floats], numbers: int
) -> None:
    values = np.random.default_rng(1).normal(size=(5, 7, numbers))
    mask = np.arange(7) < np.array([1, 7, 3, 5, 2])[:, None]
    rounds = (Round(1.0, 3), Round(1.0, 4))
    keys, read = read_in_rounds(values[..., 0], mask, rounds, lambda some: combine(values, some))
    assert (read == mask).all()
    assert np.argsort(-keys).tolist() == np.argsort(-combine(values, mask)).tolist()


def test_attention_weighs_the_scores_of_the_chunks_that_were_read() -> None:
    values = array([[0.0, 4.0], [np.log(3.0), 8.0], [50.0, 99.0]])
    assert attended_score(values, np.array([[True, True, False]])) == pytest.approx([7.0])
    assert np.isfinite(attended_score(values, np.zeros((1, 3), dtype=bool))).all()


def test_measures_are_those_of_trec_eval() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        keys = rng.permutation(15).astype(float)
        grades = rng.integers(0, 3, 15).astype(float)
        judged = {f"d{n}": int(grade) for n, grade in enumerate(grades)} | {"not-a-candidate": 2}
        run = {"q": rank("q", [(f"d{n}", key) for n, key in enumerate(keys)])}
        expected = evaluate({"q": judged}, run, parse_measures(["nDCG@10"]))["nDCG@10"]["q"]
        assert ndcg_at_10(keys, grades, list(judged.values())) == pytest.approx(expected)
        one = np.zeros(15)
        one[4] = 1
        expected = evaluate({"q": {"d4": 1}}, run, parse_measures(["RR"]))["RR"]["q"]
        assert reciprocal_rank(keys, one, [1]) == pytest.approx(expected)


def test_ties_count_as_the_mean_over_all_their_orders() -> None:
    keys, grades = array(3.0, 1.0, 1.0, 1.0, 0.0), array(0.0, 2.0, 0.0, 1.0, 1.0)
    orders = [np.array([3.0, *order, 0.0]) for order in permutations((0.5, 1.0, 1.5))]
    mean = fmean(ndcg_at_10(order, grades, [2, 1, 1]) for order in orders)
    assert ndcg_at_10(keys, grades, [2, 1, 1]) == pytest.approx(mean)
    assert gains_by_place(keys, grades).tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert reciprocal_rank(keys, array(0.0, 1.0, 0.0, 0.0, 0.0), [1]) == pytest.approx(
        fmean((1 / 2, 1 / 3, 1 / 4))
    )


def test_a_relevant_document_that_is_no_candidate_counts_as_nothing() -> None:
    assert reciprocal_rank(array(2.0, 1.0), np.zeros(2), [1]) == 0.0
    assert ndcg_at_10(array(2.0, 1.0), np.zeros(2), []) == 0.0
    with pytest.raises(ValueError, match=r"judged is \[1, 0, 2\]; a reciprocal rank needs exactly one"):
        reciprocal_rank(array(2.0, 1.0), np.zeros(2), [1, 0, 2])


def test_the_interval_of_differences_is_that_of_their_mean() -> None:
    assert interval([0.25] * 9, seed=1) == (0.25, 0.25)
    values = np.random.default_rng(5).normal(0.1, 1.0, 400)
    low, high = interval(values.tolist(), seed=1)
    assert (low, high) == interval(values.tolist(), seed=1)
    error = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - error, abs=0.02)
    assert high == pytest.approx(values.mean() + error, abs=0.02)
    with pytest.raises(ValueError, match="at least 1"):
        interval([], seed=1)
