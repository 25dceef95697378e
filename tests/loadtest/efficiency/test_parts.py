"""Documents, gains, pairs and the file of results, each separately."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from farrank_client import AdaptiveDepth
from farrank_loadtest.accuracy.accuracy_report import Cell, ModelRow, Report
from farrank_loadtest.depths import Depth
from farrank_loadtest.efficiency.efficiency_report import open_folder
from farrank_loadtest.efficiency.long_documents import documents_of_lengths
from farrank_loadtest.efficiency.measuring import common_tokenizer
from farrank_loadtest.efficiency.points import (
    Gain,
    all_gains,
    all_pairs,
    at_depths,
    chosen_pairs,
    measured_gains,
    parse_accuracy,
)
from farrank_loadtest.efficiency.run_times import FILE, Results
from farrank_loadtest.errors import LoadtestError
from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.papers import paper_models
from farrank_rankers.reader import Reader
from farrank_trec.errors import InputError
from support.efficiency_runs import CONDITIONS, measured

PAIRS = all_pairs(paper_models())


def test_every_ranker_reads_by_the_common_tokenizer_and_fits_into_a_batch() -> None:
    tokenizer = common_tokenizer()
    for model in (each for pair in PAIRS.values() for each in (pair.ranker, pair.firstp)):
        reader = Reader(model.spec, tokenizer, BackboneFacts.from_config(model.config))
        # The command's --max-batch-tokens: a server refuses rankers with longer inputs.
        assert reader.max_input_tokens <= 2048, model.name


def test_articles_are_joined_in_order_and_cut_in_turns(collection: Path) -> None:
    documents = documents_of_lengths(collection, 3, (1400, 600), common_tokenizer())

    assert [(each.doc_id, each.tokens) for each in documents] == [("a", 1400), ("b", 600), ("c", 1400)]
    assert documents[0].text.startswith("0. The tower")
    starts = [documents[0].text.index(f"{pos}. The tower") for pos in range(4)]
    assert starts == sorted(starts)


def test_plain_documents_and_shorter_ones_where_long_ones_are_few(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    lengths = {"one": 5, "two": 700, "three": 50}
    path.write_text("".join(json.dumps({"id": d, "text": "sea " * n}) + "\n" for d, n in lengths.items()))

    documents = documents_of_lengths(path, 2, (600,), common_tokenizer())

    assert [(each.doc_id, each.tokens) for each in documents] == [("two", 600), ("three", 50)]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('{"id": "a", "text": "x"}\nnope\n', "docs.jsonl:2: not JSON"),
        ('{"id": "a", "text": 5}\n', "docs.jsonl:1: 'text' must be a string, not int"),
        ('{"text": "x"}\n', "docs.jsonl:1: 'id' or"),
        ('{"article": "a", "text": "x"}\n', "docs.jsonl:1: 'pos' must be a whole number"),
        (
            '{"article": "a", "pos": 1, "text": "x"}\n' * 2,
            "docs.jsonl:2: article 'a' has two passages with pos 1",
        ),
        ('{"id": "a", "text": "x"}\n', "docs.jsonl: holds 1 documents; 2 are needed"),
    ],
)
def test_a_bad_collection_is_named_by_line(tmp_path: Path, lines: str, says: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text(lines)

    with pytest.raises(InputError) as caught:
        documents_of_lengths(path, 2, (10,), common_tokenizer())

    assert str(caught.value).startswith(f"{tmp_path}/{says}")


def report(path: Path, **rows: tuple[str, float | None]) -> Path:
    """Write an accuracy test's file: each model's baseline and its gain in nDCG@10."""
    Report(
        test_set=path.stem,
        queries=1,
        alpha=0.05,
        measures=("nDCG@10",),
        rows=tuple(
            ModelRow(name.replace("_", "-"), baseline, {"nDCG@10": Cell(0.5, (0.5,), gain)})
            for name, (baseline, gain) in rows.items()
        ),
        notes=(),
        inputs={},
    ).write_json(path)
    return path


def test_gains_are_averaged_over_test_sets_and_published_ones_fill_in(tmp_path: Path) -> None:
    first = report(tmp_path / "a.json", maxp_bert=("firstp-bert", 0.02), other=("", None))
    second = report(tmp_path / "b.json", maxp_bert=("firstp-bert", 0.05))

    gains = all_gains(measured_gains([(first, "nDCG@10"), (second, "nDCG@10")], PAIRS))

    assert gains["maxp-bert"].percent == pytest.approx(3.5)
    assert (gains["maxp-bert"].measured, gains["maxp-bert"].source) == (True, "measured: nDCG@10")
    assert gains["parade-attn-bert"] == Gain(5.0, False, "published: Table 4")


@pytest.mark.parametrize(
    ("tests", "p", "significant"),
    [
        (((0.001, 0.002), (0.003, 0.004)), 0.004, True),
        (((0.001, 0.002), (0.003, 0.02)), 0.02, False),
        (((None, None), (0.003, 0.004)), None, False),
    ],
)
def test_a_gain_is_significant_if_every_test_of_every_set_is(
    tests: tuple[tuple[float | None, float | None], ...], p: float | None, significant: bool, tmp_path: Path
) -> None:
    paths = []
    for number, (t_test, randomisation) in enumerate(tests):
        cell = Cell(0.5, (0.5,), 0.04, t_test_p=t_test, randomisation_p=randomisation)
        rows = (ModelRow("maxp-bert", "firstp-bert", {"RR": cell}),)
        paths.append((tmp_path / f"{number}.json", "RR"))
        Report("a", 100 + number, 0.01, ("RR",), rows, (), {}).write_json(paths[-1][0])

    assert measured_gains(paths, PAIRS)["maxp-bert"] == Gain(4.0, True, "measured: RR", 201, p, significant)


def test_a_depth_has_the_gain_that_was_measured_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    cells = {"maxp-bert all": 0.04, "maxp-bert adaptive": 0.05, "maxp-bert adaptive,chunks=4": 0.06}
    rows = (ModelRow(name, "firstp-bert", {"RR": Cell(0.5, (0.5,), gain)}) for name, gain in cells.items())
    Report("a", 1, 0.05, ("RR",), tuple(rows), (), {}).write_json(path)
    depths: list[Depth] = ["adaptive", AdaptiveDepth(chunks=4)]
    pairs = at_depths(PAIRS, depths)

    gains = all_gains(measured_gains([(path, "RR")], pairs))

    found = {
        name: gains[name].percent
        for name in ("maxp-bert", "maxp-bert adaptive", "maxp-bert adaptive,chunks=4")
    }
    assert list(found.values()) == pytest.approx([4, 5, 6])
    names = [pair.name for pair in chosen_pairs(pairs, ["maxp-bert", "sump-bert"], gains, depths)]
    assert names == ["maxp-bert", "sump-bert", "maxp-bert adaptive", "maxp-bert adaptive,chunks=4"]
    with pytest.raises(LoadtestError, match=r"depth adaptive: --accuracy has no gain of a model named"):
        chosen_pairs(pairs, ["sump-bert"], gains, depths)
    # LongP scores one chunk, and cannot be adaptive.
    assert not [name for name in pairs if name.startswith("longp") and name.endswith("adaptive")]


def test_a_report_that_does_not_fit_is_named(tmp_path: Path) -> None:
    good = report(tmp_path / "good.json", maxp_bert=("firstp-bert", 0.02))
    cases = {
        "has no RR, only nDCG@10": [(good, "RR")],
        "no model has the name of a paper's ranker, only other": [
            (report(tmp_path / "other.json", other=("", None)), "nDCG@10")
        ],
        "maxp-bert must be compared with firstp-bert (--baseline), not with nothing": [
            (report(tmp_path / "alone.json", maxp_bert=("", None)), "nDCG@10")
        ],
        "lacks maxp-bert, whose average gain": [
            (good, "nDCG@10"),
            (report(tmp_path / "less.json", sump_bert=("firstp-bert", 0.1)), "nDCG@10"),
        ],
    }
    for says, given in cases.items():
        with pytest.raises(InputError) as caught:
            measured_gains(given, PAIRS)
        assert str(caught.value).startswith(f"{given[-1][0]}: ")
        assert says in str(caught.value)


def test_accuracy_names_a_file_and_maybe_a_measure() -> None:
    assert parse_accuracy("x/a.json", "RR") == (Path("x/a.json"), "RR")
    assert parse_accuracy("x/a.json:nDCG@20", "RR") == (Path("x/a.json"), "nDCG@20")
    with pytest.raises(LoadtestError, match=r"must be FILE\.json, or FILE:MEASURE"):
        parse_accuracy("a.txt", "RR")


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    results = Results(CONDITIONS, "a command", {"maxp-bert": measured("maxp-bert", "firstp-bert", 3.0)})
    results.write(tmp_path)

    again = Results.read(tmp_path)

    assert again == results
    assert open_folder(tmp_path, CONDITIONS, "another command", resume=True) == results
    with pytest.raises(LoadtestError, match=r"efficiency\.json: was measured with rounds 3, not 5"):
        open_folder(tmp_path, replace(CONDITIONS, rounds=5), "a command", resume=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "conditions": {}}'])
def test_another_file_is_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(InputError, match=r"efficiency\.json: not written by `farrank loadtest efficiency`"):
        Results.read(tmp_path)
