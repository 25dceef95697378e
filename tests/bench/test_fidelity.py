import math

import pytest

from farrank_bench.fidelity import compare

REFERENCE = {"q1": {f"d{n}": float(n) for n in range(20)}, "q2": {f"d{n}": -float(n) for n in range(20)}}


def test_the_same_scores_in_another_order_of_documents_are_the_same_ranking() -> None:
    shuffled = {query: dict(reversed(scores.items())) for query, scores in REFERENCE.items()}
    found = compare(REFERENCE, shuffled)
    assert (found.mean_tau, found.least_tau, found.overlap) == (1, 1, 1)
    assert (found.mean_difference, found.max_difference) == (0, 0)


def test_the_worst_question_is_told_beside_the_mean() -> None:
    reversed_once = REFERENCE | {"q1": {doc_id: -score for doc_id, score in REFERENCE["q1"].items()}}
    found = compare(REFERENCE, reversed_once)
    assert (found.mean_tau, found.least_tau) == (0, -1)
    assert (found.overlap, found.least_overlap) == (0.5, 0)
    assert found.max_difference == 38


def test_what_is_no_number_is_not_taken_for_agreement() -> None:
    broken = REFERENCE | {"q2": REFERENCE["q2"] | {"d3": math.nan}}
    with pytest.raises(ValueError, match=r"^q2: a score is not finite"):
        compare(REFERENCE, broken)
