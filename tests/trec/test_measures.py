"""The measures compared with values computed by hand, and their treatment of ties and gaps."""

from math import log2

import pytest

from farrank_trec import rank
from farrank_trec.errors import TrecError
from farrank_trec.measures import evaluate, evaluate_pooled, mean_name, parse_measures

QRELS = {"q": {"a": 3, "b": 0, "c": 1, "elsewhere": 2}}
# b, a, x, c: the second and the fourth are relevant; a third one was not retrieved.
RUN = {"q": rank("q", [("b", 4.0), ("a", 3.0), ("x", 2.0), ("c", 1.0)])}


def test_against_values_by_hand() -> None:
    values = evaluate(QRELS, RUN, parse_measures(["RR", "nDCG@10", "P@2", "P@10", "AP", "AP(rel=2)"]))

    dcg = 3 / log2(3) + 1 / log2(5)
    ideal = 3 / log2(2) + 2 / log2(3) + 1 / log2(4)
    assert values["RR"]["q"] == pytest.approx(1 / 2)
    assert values["nDCG@10"]["q"] == pytest.approx(dcg / ideal, abs=1e-6)
    assert values["P@2"]["q"] == pytest.approx(1 / 2)
    assert values["P@10"]["q"] == pytest.approx(2 / 10)
    assert values["AP"]["q"] == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert values["AP(rel=2)"]["q"] == pytest.approx((1 / 2) / 2)


def test_the_run_is_measured_in_the_order_that_it_has() -> None:
    """With equal scores, the measures take the order of `rank`."""
    (measure,) = parse_measures(["RR"])
    tied = rank("q", [("a", 1.0 + 1e-9), ("m", 1.0), ("z", 1.0)])

    for place, relevant in enumerate(tied, start=1):
        values = evaluate({"q": {relevant.doc_id: 1}}, {"q": tied}, [measure])
        assert values["RR"]["q"] == pytest.approx(1 / place)


def test_judged_queries_count_and_no_others() -> None:
    qrels = {"ranked": {"a": 1}, "unranked": {"a": 1}, "nothing relevant": {"a": 0}}
    run = {query: rank(query, [("a", 1.0)]) for query in ("ranked", "nothing relevant", "unjudged")}

    values = evaluate(qrels, run, parse_measures(["RR"]))

    assert values["RR"] == {"ranked": 1.0, "unranked": 0.0, "nothing relevant": 0.0}


def test_pooled_parts_keep_their_own_judgements_of_the_same_query() -> None:
    first = ({"q": {"a": 1}}, {"q": rank("q", [("a", 2.0), ("b", 1.0)])})
    second = ({"q": {"b": 1}, "p": {"a": 1}}, {"q": first[1]["q"], "p": rank("p", [("b", 1.0)])})

    values = evaluate_pooled([first, second], parse_measures(["RR"]))

    assert values["RR"] == {"1:q": 1.0, "2:q": 0.5, "2:p": 0.0}


def test_means_have_names_of_their_own_and_are_understood() -> None:
    assert list(map(str, parse_measures(["MRR", "MAP", "nDCG@20"]))) == ["RR", "AP", "nDCG@20"]
    assert list(map(mean_name, ["RR", "AP", "nDCG@20"])) == ["MRR", "MAP", "nDCG@20"]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["NDCG10"], "measure 'NDCG10': unknown"),
        (["nDCG@"], "measure 'nDCG@': unknown"),
        (["RR@10"], "measure 'RR@10': not in trec_eval"),
        (["RR", "MRR"], "measure 'MRR': appears twice"),
    ],
)
def test_other_measures_are_refused(names: list[str], says: str) -> None:
    with pytest.raises(TrecError, match=says):
        parse_measures(names)
