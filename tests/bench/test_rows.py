import re
from importlib.metadata import version

import pytest

from farrank_bench.report import Heading, Row, at_least, below, not_measured, spread


def test_a_spread_is_the_median_with_the_ends_of_the_runs() -> None:
    assert spread([3.0, 1.0, 2.0, 9.0, 8.0], ".1f") == "3.0 (1.0 to 9.0)"


def test_no_run_is_no_figure() -> None:
    with pytest.raises(ValueError, match="at least 1 run"):
        spread([], ".1f")


def test_the_median_decides_not_the_best_run() -> None:
    assert at_least("x", [2.9, 2.9, 9.0], 3.0) == Row("x", "2.900 (2.900 to 9.000)", "at least 3", False)
    assert at_least("x", [3.0, 3.0, 1.0], 3.0).reached
    assert not below("x", [10.0, 10.0, 1.0], 10.0).reached
    assert below("x", [9.9, 9.9, 30.0], 10.0).reached


def test_a_missing_measurement_never_reaches_its_aim() -> None:
    row = not_measured("x", "pip failed:\n  no network", "at least 5")
    assert row == Row("x", "not measured: pip failed: no network", "at least 5", False)
    assert not_measured("x", "no network").reached is None


def test_the_report_says_whether_an_aim_was_reached() -> None:
    rows = [Row("a", "1"), Row("b", "2", "at least 3", False), Row("c", "4", "at least 3", True)]
    page = Heading("Speeds", "medians").page("make bench", {"Speed": rows})
    assert "## Speed" in page
    assert page.splitlines()[-3:] == [
        "| a | 1 |  |  |",
        "| b | 2 | at least 3 | no |",
        "| c | 4 | at least 3 | yes |",
    ]


def test_the_heading_says_where_with_what_and_how() -> None:
    heading = Heading("Speed", "medians", ("farrank", "no-such-package"), ["Beware."])
    page = heading.page("make bench", {})
    title, _, warning, _, date, machine, versions, command, notes = page.splitlines()
    assert (title, warning, command, notes) == ("# Speed", "Beware.", "- command: `make bench`", "- medians")
    assert date.startswith("- date: 20")
    assert re.fullmatch(r"- machine: .+, \d+ cores?, \w+, Python 3\.\d+\.\d+", machine)
    assert versions == f"- versions: farrank {version('farrank')}, no-such-package not installed"


def test_reports_with_warnings_have_no_aims() -> None:
    rows = {"Speed": [Row("a", "1", "at least 3", False)]}
    assert Heading("Speed", "medians", warnings=["Tiny."]).page("x", rows).endswith("| a | 1 |  |  |\n")


def test_a_limit_is_held_only_where_there_are_one_and_runs() -> None:
    assert at_least("x", [2.0], None) == Row("x", "2.000 (2.000 to 2.000)")
    assert at_least("x", [], 3.0, missing="no device") == not_measured("x", "no device", "at least 3")


def test_sections_of_a_row_each_can_share_a_table() -> None:
    rows = {"firstp": [Row("firstp", "1; 30.4")], "maxp": [not_measured("all or some", "no memory")]}
    page = Heading("Aggregators", "medians", one_table="Families").page("x", rows)
    assert page.count("## ") == 1
    assert page.splitlines()[-2:] == [
        "| firstp | 1; 30.4 |  |  |",
        "| maxp | not measured: no memory |  |  |",
    ]
