"""Rounds read what the schedule says, never more than the budget, and everything if the budget allows it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.chunking import Chunking
from farrank_rankers.depth.rounds import MEAN_CHUNKS, Rounds, Step, most_chunks, why_not_adaptive
from farrank_rankers.depth.selection import Ints
from farrank_rankers.family import FAMILIES
from farrank_rankers.spec import RankerSpec

READS_IN_ROUNDS = {
    *("maxp", "sump", "avgp", "cedr-knrm", "cedr-pacrr", "cedr-drmm", "neural-model1"),
    *("parade-avg", "parade-max", "parade-attn", "parade-transf-rand", "parade-transf-pretr"),
    *("parade-transf-pretr-q", "cross-encoder", "yes-no"),
}


def planned(chunks: list[int], budget: float, costs: list[list[int]] | None = None) -> Rounds:
    """Plan documents with these numbers of chunks, of which the last is the most promising."""
    orders: list[Ints] = [np.arange(count)[::-1] for count in chunks]
    each = [np.ones(count, dtype=np.int64) for count in chunks]
    return Rounds(orders, each if costs is None else [np.array(cost) for cost in costs], budget)


def steps(rounds: Rounds, rankings: list[list[int]]) -> list[Step]:
    """Take all steps; `rankings` are those before each round, of which the last stays."""
    found: list[Step] = []
    for number in range(9):
        step = rounds.next(rankings[min(number, len(rankings) - 1)])
        if step is None:
            return found
        found.append(step)
    raise AssertionError("it does not end")


def numbers(step: Step) -> dict[int, list[int]]:
    return {document: read.tolist() for document, read in step.reads.items()}


def test_the_schedule_is_two_of_all_then_two_of_half_then_four_of_a_fifth() -> None:
    rankings = [[*range(10)], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [7, 9, 8, 6, 5, 4, 3, 2, 1, 0]]
    first, second, third = steps(planned([20] * 10, MEAN_CHUNKS * 10), rankings)
    assert numbers(first) == {document: [18, 19] for document in range(10)}
    assert numbers(second) == {document: [16, 17, 18, 19] for document in (5, 6, 7, 8, 9)}
    assert third.documents == [7, 9]
    assert numbers(third) == {document: [*range(12, 20)] for document in (7, 9)}


@pytest.mark.parametrize("count", range(1, 60))
def test_no_chunk_is_lost_to_rounding(count: int) -> None:
    rounds = planned([20] * count, MEAN_CHUNKS * count)
    first, *_ = steps(rounds, [[*range(count)]])
    assert {len(read) for read in first.reads.values()} == {2}
    assert rounds.spent == int(MEAN_CHUNKS * count + 1e-6)


def test_a_budget_for_everything_is_one_round() -> None:
    (only,) = steps(planned([3, 1, 7], 11), [[2, 0, 1]])
    assert numbers(only) == {0: [0, 1, 2], 1: [0], 2: [*range(7)]}


def test_the_smallest_budget_reads_one_chunk_of_each() -> None:
    (only,) = steps(planned([3, 1, 7], 3), [[2, 0, 1]])
    assert numbers(only) == {0: [2], 1: [0], 2: [6]}
    (only,) = steps(planned([2, 2], 5, [[10, 10], [10, 10]]), [[0, 1]])
    assert numbers(only) == {0: [1], 1: [1]}


def test_what_short_documents_leave_goes_to_the_others() -> None:
    (first, *_) = steps(planned([1, 20], MEAN_CHUNKS * 2), [[0, 1]])
    assert numbers(first) == {0: [0], 1: [17, 18, 19]}


def test_a_document_read_to_its_end_stays_among_the_best() -> None:
    _, second, *_ = steps(planned([1, 20, 20, 20], 10), [[0, 1, 2, 3]])
    assert second.documents == [0, 1]
    assert [*second.reads] == [1]


def test_documents_beyond_the_part_of_the_budget_wait() -> None:
    first, second, third = steps(planned([9] * 20, 30), [[*range(20)]])
    assert len(first.reads) == 20
    # Two rounds get 3 of 3.8 parts: 23.7, of which the first has taken 20.
    assert second.chosen == [*range(10)]
    assert numbers(second) == {document: [7, 8] for document in (0, 1, 2)}
    # Document 3 has waited, and what was read of it before counts.
    assert numbers(third) == {0: [5, 6, 7, 8], 1: [5, 6, 7, 8], 2: [5, 6, 7, 8], 3: [7, 8]}


documents = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=12)


@given(documents, st.floats(0, 200), st.randoms())
def test_each_chunk_is_read_once_and_the_budget_holds(costs: list[list[int]], budget: float, random) -> None:  # type: ignore[no-untyped-def]
    rounds = planned([len(cost) for cost in costs], budget, costs)
    read: dict[int, list[int]] = {}
    ranking = [*range(len(costs))]
    left = rounds.left
    while (step := rounds.next(ranking)) is not None:
        assert len(step.reads) >= 1
        assert step.chosen == ranking[: len(step.chosen)]
        assert step.documents == step.chosen[: len(step.documents)]
        if not read:
            assert sorted(step.reads) == [*range(len(costs))]
        for document, now in numbers(step).items():
            assert now == sorted({*now})
            assert {*read.get(document, [])} < {*now}
            # The most promising ones, which stand last.
            assert now == [*range(len(costs[document]) - len(now), len(costs[document]))]
            read[document] = now
        assert rounds.left <= left or rounds.left <= budget
        left = rounds.left
        ahead = step.documents[:]
        random.shuffle(ahead)
        ranking = [*ahead, *(each for each in ranking if each not in ahead)]
    assert rounds.left == 0
    spent = sum(costs[document][len(costs[document]) - 1 - n] for document, its in read.items() for n in its)
    assert rounds.spent == spent
    assert spent <= max(budget, sum(cost[0] for cost in costs))
    if budget >= sum(map(sum, costs)):
        assert all(len(read[number]) == len(cost) for number, cost in enumerate(costs))


def spec(family: str) -> RankerSpec:
    kind = FAMILIES[family].chunking
    return RankerSpec(family, "tiny", Chunking(kind, 150, 100 if kind == "sliding" else 150, 1431))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_whose_score_is_of_a_set_of_chunks_read_in_rounds(family: str) -> None:
    assert (why_not_adaptive(spec(family)) is None) == (family in READS_IN_ROUNDS)


def test_the_reasons_against_rounds() -> None:
    assert why_not_adaptive(spec("longp")) == "family longp scores a document by its first chunk"
    crossed = spec("cross-encoder")
    first = replace(crossed, options=replace(crossed.options, aggregation="first"))  # type: ignore[call-arg]
    assert "first chunk" in (why_not_adaptive(first) or "")
    assert "without the query" in (why_not_adaptive(spec("biencoder")) or "")
    assert "ensemble" in (why_not_adaptive(spec("maxp"), spec("sump")) or "")
    short = replace(spec("maxp"), chunking=Chunking("sliding", 150, 100, 149))
    assert why_not_adaptive(short) == "its max_document_tokens is less than its window"


def test_a_transformer_over_chunks_reads_as_many_as_it_has_places_for() -> None:
    assert most_chunks(spec("maxp"), None) is None
    assert most_chunks(spec("maxp"), 3) == 3
    assert most_chunks(spec("parade-transf-rand"), None) == 14
    assert most_chunks(spec("parade-transf-rand"), 3) == 3
    assert most_chunks(spec("parade-transf-rand"), 30) == 14
