"""Models, seeds, parts and baselines on the command line."""

from pathlib import Path

import pytest

from farrank_client import AdaptiveDepth
from farrank_loadtest.accuracy.test_set import Model, at_depths, parse_baselines, parse_models
from farrank_loadtest.errors import LoadtestError

NAMES = ["Retriever", "firstp", "firstp-electra", "maxp", "parade"]


def test_models_keep_their_order() -> None:
    models = parse_models(
        [("ranker", "maxp"), ("run", "bm25=a.trec+b.trec,c.trec+d.trec"), ("ranker", "parade=p1,p2,p3")]
    )

    assert models == [
        Model("maxp", rankers=("maxp",)),
        Model("bm25", runs=((Path("a.trec"), Path("b.trec")), (Path("c.trec"), Path("d.trec")))),
        Model("parade", rankers=("p1", "p2", "p3")),
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([("ranker", "a,b")], "must be RANKER, or MODEL=RANKER,RANKER"),
        ([("ranker", "m=a,a")], "with each named once"),
        ([("ranker", "m=a,")], "with each named once"),
        ([("run", "file.trec")], "must be MODEL=FILE"),
        ([("run", "m=a++b")], "must be MODEL=FILE"),
        ([("ranker", "a"), ("run", "a=file")], "model 'a': the name is taken"),
        ([("ranker", "a"), ("run", "Retriever=file")], "model 'Retriever': the name is taken"),
    ],
)
def test_contradictory_models_are_refused(given: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(LoadtestError, match=says):
        parse_models(given)


def test_a_baseline_for_all_leaves_baselines_and_the_retriever_alone() -> None:
    assert parse_baselines(["firstp"], NAMES) == {
        "firstp-electra": "firstp",
        "maxp": "firstp",
        "parade": "firstp",
    }
    assert parse_baselines(["firstp", "parade=firstp-electra"], NAMES) == {
        "maxp": "firstp",
        "parade": "firstp-electra",
    }
    assert parse_baselines(["Retriever=firstp"], NAMES) == {"Retriever": "firstp"}


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["firstq"], "no model is called 'firstq', only Retriever, firstp"),
        (["maxq=firstp"], "no model is called 'maxq'"),
        (["maxp=maxp"], "with two names"),
        (["firstp", "maxp"], "every model has 'firstp' already"),
        (["maxp=firstp", "maxp=parade"], "maxp has 'firstp' already"),
    ],
)
def test_wrong_baselines_are_refused(texts: list[str], says: str) -> None:
    with pytest.raises(LoadtestError, match=says):
        parse_baselines(texts, NAMES)


def test_a_ranker_is_a_model_at_each_depth_unless_it_cannot_be_adaptive() -> None:
    models = [Model("firstp", ("firstp",)), Model("two", ("a", "b")), Model("bm25", runs=((Path("r"),),))]
    four = AdaptiveDepth(chunks=4)

    found, fulls = at_depths(models, ["all", four], {"firstp", "other"})

    assert found == [
        models[0],
        Model("two all", ("a", "b"), depth="all"),
        Model("two adaptive,chunks=4", ("a", "b"), depth=four),
        models[2],
    ]
    assert fulls == {"two adaptive,chunks=4": "two all"}
    assert at_depths(models, [], ()) == (models, {})
    # Without any depth that is adaptive, every ranker can.
    assert [each.name for each in at_depths(models, ["all"], ())[0]] == ["firstp all", "two all", "bm25"]
    with pytest.raises(LoadtestError, match=r"^depth adaptive,chunks=4: is given twice"):
        at_depths(models, [four, four], ())


def test_baselines_are_found_in_names_with_an_equals_sign() -> None:
    names = ["maxp adaptive,chunks=4", "maxp all", "selector"]
    assert parse_baselines(["maxp adaptive,chunks=4=selector"], names) == {names[0]: "selector"}
    assert parse_baselines(["selector=maxp adaptive,chunks=4"], names) == {"selector": names[0]}
    assert parse_baselines(["maxp adaptive,chunks=4"], names) == dict.fromkeys(names[1:], names[0])
