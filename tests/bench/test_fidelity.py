import math

import pytest

from farrank_bench.fidelity import fidelity_rows
from farrank_demo.questions import load_qrels

QUERIES = list(load_qrels())[:2]
REFERENCE = {
    query: {f"d{n}": sign * float(n) for n in range(20)} for query, sign in zip(QUERIES, (1, -1), strict=True)
}


def test_the_same_scores_in_another_order_of_documents_are_the_same_ranking() -> None:
    shuffled = {query: dict(reversed(scores.items())) for query, scores in REFERENCE.items()}
    assert [row.measured for row in fidelity_rows("x", "fp32", REFERENCE, shuffled)] == [
        "1.0000 (1.0000)",
        "+0.0000",
        "1.000 (1.0), 0.0e+00, 0.0e+00",
    ]


def test_the_worst_question_is_reported_with_the_mean() -> None:
    first = QUERIES[0]
    reversed_once = REFERENCE | {first: {doc_id: -score for doc_id, score in REFERENCE[first].items()}}
    tau, _, overlap = fidelity_rows("x", "fp32", REFERENCE, reversed_once)
    assert tau.measured == "0.0000 (-1.0000)"
    assert overlap.measured == "0.500 (0.0), 9.5e+00, 3.8e+01"


def test_scores_that_are_not_finite_never_count_as_agreement() -> None:
    query = QUERIES[1]
    broken = REFERENCE | {query: REFERENCE[query] | {"d3": math.nan}}
    with pytest.raises(ValueError, match=f"^{query}: a score is not finite"):
        fidelity_rows("x", "fp32", REFERENCE, broken)
