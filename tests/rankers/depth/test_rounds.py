"""Rounds read what the plan says, never more than the budget, and everything if the budget allows it."""

from collections.abc import Sequence
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.depth.plan import MAX_CHUNKS, DepthPlan, Round
from farrank_rankers.depth.rounds import SHARED_OUT, Rounds, Step, doubling
from farrank_rankers.depth.selection import Ints

ONE = DepthPlan().rounds
THREE = (Round(1.0, 2), Round(0.5, 2), Round(0.2, 4))


def planned(
    chunks: list[int],
    rounds: Sequence[Round],
    budget: float = np.inf,
    costs: list[list[int]] | None = None,
) -> Rounds:
    """Plan documents with these numbers of chunks, of which the last is the most promising."""
    orders: list[Ints] = [np.arange(count)[::-1] for count in chunks]
    each = [np.ones(count, dtype=np.int64) for count in chunks]
    return Rounds(orders, each if costs is None else [np.array(cost) for cost in costs], rounds, budget)


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


def test_without_a_budget_two_chunks_of_all_documents_are_read_in_one_round() -> None:
    rounds = planned([20, 1, 3, 20], ONE)
    (only,) = steps(rounds, [[3, 1, 0, 2]])
    assert only.documents == [3, 1, 0, 2]
    # A short document leaves nothing to the others: scores compare.
    assert numbers(only) == {0: [18, 19], 1: [0], 2: [1, 2], 3: [18, 19]}
    assert rounds.is_last
    assert rounds.left == 0


def test_a_plan_of_three_rounds_reads_more_of_the_best() -> None:
    rankings = [[*range(10)], [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], [7, 9, 8, 6, 5, 4, 3, 2, 1, 0]]
    first, second, third = steps(planned([20] * 10, THREE), rankings)
    assert numbers(first) == {document: [18, 19] for document in range(10)}
    assert numbers(second) == {document: [16, 17, 18, 19] for document in (5, 6, 7, 8, 9)}
    assert third.documents == [7, 9]
    assert numbers(third) == {document: [*range(12, 20)] for document in (7, 9)}


def test_a_plan_holds_what_its_rounds_can_still_cost() -> None:
    rounds = planned([20] * 10, THREE)
    assert rounds.left == DepthPlan(THREE).most_chunks(10) == 38
    for left in (18, 8, 0):
        rounds.next([*range(10)])
        assert rounds.left == left
        assert rounds.is_last == (left == 0)


def test_a_budget_is_shared_out_in_one_round() -> None:
    (only,) = steps(planned([20] * 4, SHARED_OUT, 10), [[2, 0, 1, 3]])
    # Two and a half of each: the best documents get the halves.
    assert numbers(only) == {0: [17, 18, 19], 1: [18, 19], 2: [17, 18, 19], 3: [18, 19]}
    (only,) = steps(planned([1, 20], SHARED_OUT, 8), [[0, 1]])
    assert numbers(only) == {0: [0], 1: [*range(13, 20)]}


def test_a_budget_for_everything_is_one_round() -> None:
    (only,) = steps(planned([3, 1, 7], SHARED_OUT, 11), [[2, 0, 1]])
    assert numbers(only) == {0: [0, 1, 2], 1: [0], 2: [*range(7)]}


def test_the_smallest_budget_reads_one_chunk_of_each() -> None:
    (only,) = steps(planned([3, 1, 7], SHARED_OUT, 3), [[2, 0, 1]])
    assert numbers(only) == {0: [2], 1: [0], 2: [6]}
    for rounds in (SHARED_OUT, doubling(2, 2)):
        (only,) = steps(planned([2, 2], rounds, 5, [[10, 10], [10, 10]]), [[0, 1]])
        assert numbers(only) == {0: [1], 1: [1]}


def test_rounds_of_a_time_budget_double_until_all_is_read() -> None:
    found = steps(planned([20, 5, 1], doubling(2, 20)), [[0, 1, 2]])
    assert [{n: len(read) for n, read in each.reads.items()} for each in found] == [
        {0: 2, 1: 2, 2: 1},
        {0: 4, 1: 4},
        {0: 8, 1: 5},
        {0: 16},
        {0: 20},
    ]
    # Documents that were read to their end are ordered among the others: all scores compare.
    assert all(each.documents == [0, 1, 2] for each in found)
    assert doubling(5, 3) == (Round(1.0, 5),)


def test_rounds_of_a_time_budget_read_on_beyond_the_largest_round() -> None:
    rounds = doubling(MAX_CHUNKS, 4 * MAX_CHUNKS)
    assert [each.chunks for each in rounds] == [MAX_CHUNKS] * 4
    assert max(each.chunks for each in doubling(2, 4 * MAX_CHUNKS)) == MAX_CHUNKS


def test_a_later_round_beyond_the_budget_is_not_read() -> None:
    rounds = planned([20] * 10, doubling(2, 20), 79)
    assert [len(each.reads[0]) for each in steps(rounds, [[*range(10)]])] == [2, 4]
    assert rounds.spent == 40
    assert rounds.is_last


def test_a_document_read_to_its_end_stays_among_the_best() -> None:
    _, second, *_ = steps(planned([1, 20, 20, 20], THREE), [[0, 1, 2, 3]])
    assert second.documents == [0, 1]
    assert [*second.reads] == [1]


documents = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=12)
schedules = st.sampled_from([ONE, THREE, SHARED_OUT, doubling(1, 12), doubling(2, 12)])


@given(documents, schedules, st.floats(0, 200), st.randoms())
def test_each_chunk_is_read_once_and_the_budget_holds(
    costs: list[list[int]], schedule: tuple[Round, ...], budget: float, random: Random
) -> None:
    rounds = planned([len(cost) for cost in costs], schedule, budget, costs)
    read: dict[int, list[int]] = {}
    ranking = [*range(len(costs))]
    while (step := rounds.next(ranking)) is not None:
        assert len(step.reads) >= 1
        assert step.documents == ranking[: len(step.documents)]
        if not read:
            assert sorted(step.reads) == [*range(len(costs))]
        for document, now in numbers(step).items():
            assert now == sorted({*now})
            assert {*read.get(document, [])} < {*now}
            # The most promising ones, which stand last.
            assert now == [*range(len(costs[document]) - len(now), len(costs[document]))]
            read[document] = now
        assert 0 <= rounds.left <= max(0.0, budget - rounds.spent)
        assert rounds.is_last == (not rounds.left)
        ahead = [*step.documents]
        random.shuffle(ahead)
        ranking = [*ahead, *(each for each in ranking if each not in ahead)]
    assert rounds.left == 0
    spent = sum(costs[document][len(costs[document]) - 1 - n] for document, its in read.items() for n in its)
    assert rounds.spent == spent
    assert spent <= max(budget, sum(cost[0] for cost in costs))
    if budget >= sum(map(sum, costs)) and schedule not in (ONE, THREE):
        assert all(len(read[number]) == len(cost) for number, cost in enumerate(costs))
