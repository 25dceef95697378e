"""Every query of every panel has data from a server under load, and the rules evaluate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.prometheus import NAMESPACE

if TYPE_CHECKING:
    from support.prometheus import Prometheus

# These tests need a server, an index and a load.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "dashboards" / "grafana").glob("*.json"))
# Values that Grafana would insert. `All` of a variable is its allValue.
VARIABLES = {
    "$namespace": NAMESPACE,
    "$job": "farrank",
    "$instance": ".*",
    "$ranker": ".*",
    "$__rate_interval": "6s",
    "$__range": "20s",
}


def substituted(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def read(path: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return dashboard


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_query_returns_data_with_the_labels_of_its_legend(path: Path, prometheus: Prometheus) -> None:
    queries = [
        (panel["title"], target) for panel in read(path)["panels"] for target in panel.get("targets", ())
    ]
    assert queries
    missing = []
    for title, target in queries:
        series = prometheus.series(substituted(target["expr"]))
        labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        if not series or not all(labels <= each.keys() for each in series):
            missing.append((title, target["expr"], series))
    assert not missing


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_variable_has_values(path: Path, prometheus: Prometheus) -> None:
    queries = [
        variable["query"] for variable in read(path)["templating"]["list"] if variable["type"] == "query"
    ]
    assert len(queries) == 4
    for query in queries:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert found
        selector, label = found.groups()
        values = prometheus.ask(f"label/{label}/values", **{"match[]": substituted(selector)})
        assert len(values) == (2 if label == "ranker" else 1)


def test_the_panels_of_a_chosen_ranker_hold_that_ranker_alone(prometheus: Prometheus) -> None:
    (panel,) = (
        each for each in read(FILES[0].with_name("traffic.json"))["panels"] if each["title"] == "Rankers"
    )
    (target,) = panel["targets"]
    expression = target["expr"].replace("$ranker", "(biencoder|other)")
    assert [series["ranker"] for series in prometheus.series(substituted(expression))] == ["biencoder"]
    elsewhere = substituted(target["expr"].replace("$namespace", "another"))
    assert prometheus.series(elsewhere) == []


def test_the_load_had_calls_of_every_outcome(prometheus: Prometheus) -> None:
    for code in (
        "OK",
        "RESOURCE_EXHAUSTED",
        "DEADLINE_EXCEEDED",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "CANCELLED",
    ):
        assert prometheus.largest(f'increase(farrank_requests_total{{code="{code}"}}[30s])') > 0, code
    assert prometheus.largest('increase(farrank_rejections_total{reason="queue_full"}[30s])') > 0
    assert prometheus.largest("increase(farrank_deadline_drops_total[30s])") > 0
    assert prometheus.largest("increase(farrank_cut_tokens_total[30s])") > 0
    assert prometheus.largest("increase(farrank_cache_hits_total[30s])") > 0
    assert prometheus.largest("instance:farrank_admitted_tokens:ratio") > 0.2


def test_every_rule_evaluates_and_every_recording_has_data(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["type"] for rule in rules} == {"alerting", "recording"}
    for rule in rules:
        assert rule["health"] == "ok", rule
        if rule["type"] == "recording":
            assert prometheus.series(rule["name"]), rule["name"]
            continue
        metrics = set(re.findall(r"\binstance:[\w:]+|\bfarrank[:_][\w:]+|\bup\b", rule["query"]))
        assert metrics
        for metric in metrics:
            assert prometheus.series(metric), (rule["name"], metric)


def test_refused_and_late_calls_set_off_their_alerts_and_what_is_well_does_not(
    prometheus: Prometheus,
) -> None:
    states = {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]}
    assert {"FarrankRefuses", "FarrankDropsLate"} <= states
    assert not states & {"FarrankWorkerRestarted", "FarrankBatchesFail"}
