"""The scrape configuration and the rules: promtool's own checks and unit tests, and further checks."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from farrank_server.config.schema import ObjectiveConfig

FOLDER = Path(__file__).parents[2] / "dashboards" / "prometheus"
TESTS = sorted((FOLDER / "tests").glob("*.yaml"))
TITLES = {
    json.loads(path.read_text(encoding="utf-8"))["title"].removeprefix("Farrank / ")
    for path in (FOLDER.parent / "grafana").glob("*.json")
}


def rules(kind: str) -> list[dict[str, Any]]:
    return [
        rule
        for path in sorted((FOLDER / "rules").glob("*.yaml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if kind in rule
    ]


def test_promtool_accepts_the_configuration_and_its_rules(promtool: Callable[..., None]) -> None:
    promtool("check", "config", "prometheus.yaml")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_unit_tests_of_the_rules_hold(path: Path, promtool: Callable[..., None]) -> None:
    promtool("test", "rules", str(path))


def rules_changed(folder: Path, pattern: str, replacement: str, cases: str) -> tuple[Path, int]:
    """Copy the alerts with a change, and those cases of their unit tests whose names have the words `cases`.

    Running all cases takes seconds. Returns the file of unit tests, and the number of changed places.
    """
    shutil.copytree(FOLDER / "rules", folder / "rules")
    alerts = folder / "rules" / "alerts.yaml"
    text, changed = re.subn(pattern, replacement, alerts.read_text(encoding="utf-8"))
    alerts.write_text(text)
    tests = yaml.safe_load((FOLDER / "tests" / "alerts.yaml").read_text(encoding="utf-8"))
    tests["tests"] = [each for each in tests["tests"] if re.search(cases, each["name"])]
    assert tests["tests"]
    path = folder / "tests" / "alerts.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(tests))
    return path, changed


def test_a_rule_that_is_wrong_fails_its_unit_tests(tmp_path: Path, promtool: Callable[..., None]) -> None:
    path, changed = rules_changed(tmp_path, "ratio > 0.8", "ratio > 0.95", "tokens of one replica")
    assert changed
    with pytest.raises(AssertionError, match="FarrankTokensNearBound"):
        promtool("test", "rules", str(path))


LEASTS = {
    "any number of calls in 5 minutes": (
        r"and farrank:requests:increase5m >= 100",
        "and farrank:requests:increase5m >= 0",
    ),
    "any number in an hour": (r"increase1h >= 20", "increase1h >= 0"),
    "any number in an objective's window": (r"(reranks:increase\w+) >= 100", r"\1 >= 0"),
}


@pytest.mark.parametrize("least", LEASTS)
def test_the_unit_tests_see_that_a_handful_of_calls_sets_nothing_off(
    least: str, tmp_path: Path, promtool: Callable[..., None]
) -> None:
    path, changed = rules_changed(tmp_path, *LEASTS[least], "little traffic|seldom asked|there are few")
    assert changed >= 3
    with pytest.raises(AssertionError, match=r"got: .*Farrank"):
        promtool("test", "rules", str(path))


def test_alerts_on_shares_of_calls_need_a_least_number_of_them() -> None:
    on_shares = {
        alert["alert"]: alert["expr"]
        for alert in rules("alert")
        if re.search(r"\bfarrank:\w+:ratio_rate", alert["expr"])
    }
    assert len(on_shares) == 6
    for name, expression in on_shares.items():
        for _ in re.findall(r"\b(?:farrank:\w+:ratio_rate5m > 0|ratio_rate1h > 0)", expression):
            assert re.search(r"increase(5m|1h|6h|3d) >= \d+", expression), name
        assert re.search(r"increase\w+ >= (100|20)", expression), name


def test_every_rule_has_a_unit_test() -> None:
    tested = "".join(path.read_text(encoding="utf-8") for path in TESTS)
    for rule in rules("alert"):
        assert f'alertname="{rule["alert"]}"' in tested
    for rule in rules("record"):
        assert re.search(re.escape(rule["record"]) + r"\b", tested), rule["record"]


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for alert in rules("alert"):
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert alert["annotations"].keys() == {"summary", "description", "runbook"}
        assert len(alert["annotations"]["runbook"]) > 100, alert["alert"]


def test_dashboards_named_by_a_runbook_exist() -> None:
    named = {
        name
        for alert in rules("alert")
        for name in re.findall(r'"([A-Z][a-z ]+)"', alert["annotations"]["runbook"])
    }
    assert named
    assert named <= TITLES


def test_the_page_lists_every_dashboard_and_every_alert() -> None:
    page = (FOLDER.parents[1] / "docs" / "how-to" / "dashboards.md").read_text(encoding="utf-8")
    dashboards, _, alerts = page.partition("\n## Alerts\n")
    assert set(re.findall(r"^\| ([A-Z][\w ]+) \|", dashboards, re.MULTILINE)) == TITLES
    listed = re.findall(r"`(Farrank\w+)`", "".join(re.findall(r"^\| `.*$", alerts, re.MULTILINE)))
    assert sorted(listed) == sorted(rule["alert"] for rule in rules("alert"))


def test_the_objective_stands_in_one_place_and_is_a_bound_of_the_histogram() -> None:
    expressions = {rule["record"]: rule["expr"] for rule in rules("record")}
    (bound,) = re.findall(r'"le", "([\d.]+)"', expressions["farrank:latency_objective:bound"])
    # Servers that report no objective get the configuration's default.
    assert float(bound) == ObjectiveConfig().latency_s
    (budget,) = re.findall(r"\* 0 \+ (0\.\d+)", expressions["farrank:latency_objective:budget"])
    assert 1 - float(budget) == ObjectiveConfig().share
    for record, expression in expressions.items():
        if "latency_burn" in record:
            assert "le=" not in expression
            assert "farrank:latency_objective:bound" in expression
            assert "farrank:latency_objective:budget" in expression
            assert set(re.findall(r'method=~"([\w|]+)"', expression)) == {"Rerank|SearchAndRerank"}


def test_no_rule_adds_up_releases() -> None:
    """Each aggregation keeps the namespace and the job, or drops only the labels that it names."""
    for rule in (*rules("record"), *rules("alert")):
        for kept in re.findall(r"\b(?:sum|count|max|min|avg|topk) by \(([^)]*)\)", rule["expr"]):
            assert {"namespace", "job"} <= set(kept.split(", ")), rule
        assert not re.search(r"\b(?:sum|count|max|min|avg|topk) ?\(", rule["expr"]), rule
        for joined in re.findall(r"\bon \(([^)]*)\)", rule["expr"]):
            assert {"namespace", "job"} <= set(joined.split(", ")), rule


def test_every_window_is_that_of_its_name() -> None:
    for rule in rules("record"):
        windows = set(re.findall(r"\[(\w+)\]", rule["expr"]))
        named = re.search(r"(?:rate|increase)(\d+\w)$", rule["record"])
        assert windows <= ({named.group(1)} if named else set()), rule["record"]
