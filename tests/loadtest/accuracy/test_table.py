"""The whole printed table, in the form that readers of the papers expect."""

from dataclasses import replace
from pathlib import Path

import pytest

from farrank_loadtest.accuracy.accuracy_report import Cell, ModelRow, Report, render
from farrank_loadtest.errors import LoadtestError
from farrank_trec.errors import InputError

DEV = Report(
    test_set="dev",
    queries=5193,
    alpha=0.01,
    measures=("RR",),
    rows=(
        ModelRow("FirstP", "", {"RR": Cell(0.394, (0.394,))}),
        ModelRow("MaxP", "FirstP", {"RR": Cell(0.392, (0.39, 0.394), -0.004, 0.02, 0.03)}),
        ModelRow("PARADE", "FirstP", {"RR": Cell(0.41649, (0.41649,), 0.055, 0.0001, 0.02)}),
    ),
    notes=("A note.",),
    inputs={"flags": {}},
)
DL = replace(
    DEV,
    test_set="DL",
    queries=1,
    alpha=0.05,
    measures=("nDCG@10", "AP"),
    rows=(
        ModelRow("FirstP", "", {"nDCG@10": Cell(0.632, (0.632,)), "AP": Cell(0.3, (0.3,))}),
        ModelRow(
            "MaxP",
            "FirstP",
            {
                "nDCG@10": Cell(0.644, (0.644,) * 2, 0.019, 0.02, 0.03),
                "AP": Cell(0.3, (0.3,) * 2, 0.0, 0.9, 0.9),
            },
        ),
        ModelRow(
            "PARADE",
            "FirstP",
            {"nDCG@10": Cell(0.652, (0.652,), 0.031, 0.2, 0.04), "AP": Cell(0.29, (0.29,), None, 0.5, 0.5)},
        ),
    ),
    notes=(),
)


def test_one_test_set() -> None:
    assert render([DEV]).splitlines() == [
        "| Retriever / Ranker | MRR                |",
        "| ------------------ | ------------------ |",
        "| FirstP             | 0.394              |",
        "| MaxP               | 0.392 (−0.4%)      |",
        "| PARADE             | **0.416**ᵃ (+5.5%) |",
        "",
        "dev: 5,193 judged queries.",
        "Averaged over seeds, query by query, before testing: MaxP 2.",
        "In parentheses: relative gain over FirstP. Significantly different from it (two-sided p below "
        "0.01): ᵃ by the paired t-test, ᵇ by randomisation.",
        "A note.",
    ]


def test_several_test_sets_end_with_the_average_gain() -> None:
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in render([DEV, DL]).splitlines()[:5]
    ]

    assert lines[0] == ["Retriever / Ranker", "dev MRR", "DL nDCG@10", "DL MAP", "Avg. gain"]
    assert lines[2] == ["FirstP", "0.394", "0.632", "**0.300**", "–"]
    assert lines[3] == ["MaxP", "0.392 (−0.4%)", "0.644ᵃᵇ (+1.9%)", "**0.300** (+0.0%)", "+0.5%"]
    assert lines[4] == ["PARADE", "**0.416**ᵃ (+5.5%)", "**0.652**ᵇ (+3.1%)", "0.290", "–"]
    assert "DL: 1 judged query." in render([DEV, DL])
    assert "(two-sided p below 0.01 for dev; 0.05 for DL)" in render([DEV, DL])


def test_reports_that_make_no_table_are_refused() -> None:
    with pytest.raises(LoadtestError, match="two reports name the test set 'dev'"):
        render([DEV, DEV])
    with pytest.raises(LoadtestError, match="test set 'DL' has the models FirstP, MaxP; 'dev' has"):
        render([DEV, replace(DL, rows=DL.rows[:2])])


def test_a_report_reads_back_the_same(tmp_path: Path) -> None:
    DL.write_json(tmp_path / "accuracy.json")

    assert Report.read_json(tmp_path / "accuracy.json") == DL


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"rows": [{}]}', '{"rows": [], "measures": [], "notes": []}']
)
def test_another_file_is_no_report(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)

    with pytest.raises(InputError, match=r"other\.json: not written by `farrank loadtest accuracy`"):
        Report.read_json(tmp_path / "other.json")
