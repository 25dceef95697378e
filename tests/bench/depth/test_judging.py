"""Choices on the development part, and outcomes on the test part, of hand-made cases."""

from dataclasses import replace

import numpy as np
import pytest

from farrank_bench.depth.chunk_scores import Case
from farrank_bench.depth.judging import (
    BM25,
    BOTH,
    BUDGET,
    COSINE,
    EVERYTHING,
    FIRST,
    ORACLE,
    OWN,
    PLAIN,
    PRIOR,
    RANDOM,
    SUM,
    Choice,
    Outcome,
    Weights,
    by_schedule,
    chosen_schedule,
    chosen_share,
    chosen_weights,
    difference,
    divided,
    first_score,
    firstp,
    judge,
    selectors,
)
from farrank_bench.depth.replay import BINS, reciprocal_rank

DOCUMENTS, CHUNKS, POSITIONS = 10, 8, 128


def case_of(number: int, place: int, *, scale: float = 1.0) -> Case:
    """A question whose relevant document, the first, has a chunk at `place` with the only high score.

    The bi-encoder's stored windows find this chunk, and everything else is noise; all chunks have 128
    positions, so that four of them cost as much as FirstP.
    """
    rng = np.random.default_rng(number)
    shape = (DOCUMENTS, CHUNKS)
    values, cosine, bm25, of_chunks = (rng.random(shape) for _ in range(4))
    values[0, place] = 5.0
    cosine[0, place] = 3.0
    return Case(
        query_id=f"q{number}",
        judged=[1],
        grades=np.eye(DOCUMENTS)[0],
        mask=np.ones(shape, dtype=bool),
        positions=np.full(shape, float(POSITIONS)),
        bm25=bm25,
        cosine=cosine,
        cosine_of_chunks=of_chunks,
        values=scale * values[..., None],
        firstp=np.arange(DOCUMENTS, dtype=float),
        firstp_positions=256.0,
    )


CASES = [case_of(number, 4 + number % 4) for number in range(90)]


def test_questions_are_divided_by_their_ids_alone() -> None:
    development, test = divided(CASES, seed=1)
    assert 20 < len(development) < 40
    assert len(development) + len(test) == len(CASES)
    fewer = divided(CASES[:30], seed=1)[0]
    assert [each.query_id for each in fewer] == [
        each.query_id for each in development if int(each.query_id[1:]) < 30
    ]
    assert divided(CASES, seed=2)[0] != development


def test_the_selector_that_finds_the_chunk_reads_one_of_each_document() -> None:
    every = selectors(Choice(Weights(False, 1.0), Weights(False, 1.0), np.zeros(BINS), SUM), seed=1)
    one, two = PLAIN[:2]
    found = {name: by_schedule(CASES, reciprocal_rank, each, one) for name, each in every.items()}
    for name in (COSINE, SUM, ORACLE):
        assert found[name].quality.mean() == 1.0
        assert found[name].chunks.tolist() == [1.0] * len(CASES)
        assert found[name].cost.tolist() == [0.25] * len(CASES)
    for name in (FIRST, RANDOM, BM25, OWN):
        assert found[name].quality.mean() < 0.6
    # The high score is never among the first four chunks.
    first = {chunks[0].chunks: by_schedule(CASES, reciprocal_rank, every[FIRST], chunks) for chunks in PLAIN}
    assert first[4].quality.mean() < 0.6
    assert first[8].quality.mean() == 1.0
    assert first[8].cost.mean() == 2.0
    assert by_schedule(CASES, reciprocal_rank, every[BOTH], two).quality.mean() > 0.9


def test_random_chunks_are_the_same_in_every_replay() -> None:
    every = [
        selectors(Choice(Weights(False, 1.0), Weights(False, 1.0), np.zeros(BINS), SUM), seed)[RANDOM]
        for seed in (1, 1, 2)
    ]
    first, again, other = (each(CASES[0]) for each in every)
    assert (first == again).all()
    assert (first != other).any()


def test_the_ends_are_full_reading_and_firstp() -> None:
    everything = by_schedule(CASES, reciprocal_rank, lambda case: case.bm25, EVERYTHING)
    assert everything.quality.mean() == 1.0
    assert everything.chunks.tolist() == [CHUNKS] * len(CASES)
    ends = firstp(CASES, reciprocal_rank)
    assert ends.quality.tolist() == [pytest.approx(1 / DOCUMENTS)] * len(CASES)
    assert ends.cost.tolist() == [0.5] * len(CASES)


def test_weights_and_prior_are_those_that_find_the_chunk() -> None:
    chosen = chosen_weights(CASES, reciprocal_rank)
    assert not chosen.sum.own
    assert chosen.sum.cosine > 0
    # Chunks 5 to 8 decide: those of the last two bins of eight chunks.
    assert chosen.prior[:2].max() < 0 < chosen.prior[2:4].min()
    assert chosen.best == SUM


def test_the_prior_is_chosen_where_only_the_position_tells() -> None:
    nothing = np.zeros((DOCUMENTS, CHUNKS))
    blind = [
        replace(case_of(number, CHUNKS - 1), cosine=nothing, cosine_of_chunks=nothing, bm25=nothing)
        for number in range(30)
    ]
    chosen = chosen_weights(blind, reciprocal_rank)
    assert chosen.best == PRIOR
    found = by_schedule(blind, reciprocal_rank, selectors(chosen, 1)[PRIOR], PLAIN[0])
    assert found.quality.mean() == 1.0


def test_the_cheapest_of_the_best_schedules_within_the_budget_is_chosen() -> None:
    chosen = chosen_schedule(CASES, reciprocal_rank, lambda case: case.cosine)
    found = by_schedule(CASES, reciprocal_rank, lambda case: case.cosine, chosen)
    assert found.quality.mean() == 1.0
    assert found.cost.mean() < 0.25
    chosen = chosen_schedule(CASES, reciprocal_rank, lambda case: case.bm25)
    assert by_schedule(CASES, reciprocal_rank, lambda case: case.bm25, chosen).cost.mean() <= BUDGET


def test_the_selectors_score_is_added_where_it_helps() -> None:
    noise = np.random.default_rng(4)
    for scale in (1.0, 100.0):
        # A ranker whose scores are noise, at any scale of its scores.
        cases = [replace(each, values=scale * noise.random(each.values.shape)) for each in CASES]
        share = chosen_share(cases, reciprocal_rank, lambda case: case.cosine, PLAIN[0])
        plain, mixed = (
            by_schedule(cases, reciprocal_rank, lambda case: case.cosine, PLAIN[0], each).quality.mean()
            for each in (0.0, share)
        )
        assert plain < 0.5
        assert mixed > 0.7
    assert chosen_share(CASES, reciprocal_rank, lambda case: case.cosine, PLAIN[0]) == 0.0


def test_the_first_score_is_that_of_the_selector_alone() -> None:
    every = selectors(Choice(Weights(False, 1.0), Weights(False, 1.0), np.zeros(BINS), SUM), seed=1)
    alone = by_schedule(CASES, reciprocal_rank, every[BOTH], ())
    assert alone.quality.tolist() == [reciprocal_rank(first_score(case), case.grades, [1]) for case in CASES]


def test_a_difference_is_paired() -> None:
    quality = np.random.default_rng(2).random(50)
    one, other = (Outcome(each, quality, quality) for each in (quality + 0.25, quality))
    found = difference(one, other, seed=1)
    assert (found.mean, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert str(found) == "+0.250 (+0.250 to +0.250)"


def test_a_judgement_measures_the_test_part() -> None:
    found = judge(CASES, reciprocal_rank, seed=1)
    development, test = divided(CASES, seed=1)
    assert (found.development, found.test) == (len(development), len(test))
    for outcome in (found.full, found.firstp, found.mixed, *found.rivals.values(), *found.alone.values()):
        assert len(outcome.quality) == len(test)
    assert all(len(first.quality) == len(development) for first, _ in found.schedules.values())
    assert found.rivals[found.choice.best].quality.mean() == 1.0
    assert found.rivals[FIRST].quality.mean() < 0.6
    for each in (found.fixed_full, *found.fixed.values()):
        assert len(each.quality) == len(CASES)


def test_a_part_without_questions_is_an_error() -> None:
    with pytest.raises(ValueError, match="each part needs at least 1"):
        judge(CASES[:1], reciprocal_rank, seed=1)
