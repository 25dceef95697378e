"""Monitoring by Prometheus, Grafana and KEDA: the server's metrics, and the project's own files.

`tests/dashboards/test_autoscaling.py` runs the same queries against a server under load.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from farrank_calls.errors import Reason
from farrank_server.metrics import Metrics
from support.documentation import ROOT
from support.helm_chart import ALL, Manifest, Rendered, Values
from support.prometheus import tool

DASHBOARDS = ROOT / "dashboards"


def triggers_of(values: Values) -> dict[str, Manifest]:
    return {each["name"]: each for each in Rendered(values).one("ScaledObject")["spec"]["triggers"]}


@pytest.fixture(scope="module")
def triggers() -> dict[str, Manifest]:
    return triggers_of(ALL)


def test_every_trigger_asks_for_metrics_of_the_server(triggers: dict[str, Manifest]) -> None:
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in Metrics().registry.collect()
    }
    for trigger in triggers.values():
        asked = set(re.findall(r"\bfarrank_\w+", trigger["metadata"]["query"]))
        assert asked
        assert asked <= shown


def test_refusals_that_count_are_those_that_more_replicas_would_take_in(
    triggers: dict[str, Manifest],
) -> None:
    (reasons,) = re.findall(r'reason=~"([^"]+)"', triggers["refusals"]["metadata"]["query"])
    counted = set(reasons.split("|"))
    assert counted <= set(Reason)
    # The reasons for which the alert gives this advice.
    alerts = yaml.safe_load((DASHBOARDS / "prometheus/rules/alerts.yaml").read_text(encoding="utf-8"))
    (runbook,) = (
        rule["annotations"]["runbook"]
        for group in alerts["groups"]
        for rule in group["rules"]
        if rule["alert"] == "FarrankRefuses"
    )
    (listed,) = re.findall(r"Overload \(([^)]+)\): add replicas", runbook)
    assert counted == set(listed.split(", "))


# Two replicas of this release and one of another: admitted tokens, tokens per second, and in each minute the
# busy seconds and the refused calls.
REPLICAS = {"a": (3000, 1000, 54, 300), "b": (500, 1000, 6, 0)}
NEIGHBOUR = (3_600_000, 1000, 60, 60_000)
# Computed by hand: 3 s and 0.5 s of work; busy 0.9 and 0.1 of the time; 5 refused calls per second. Calls
# whose deadline is too short do not count, because no replica helps them.
ASKED_FOR = {"backlog": 3.5, "busy": 1.0, "refusals": 5.0}


def test_the_queries_say_what_all_replicas_of_this_release_hold(
    triggers: dict[str, Manifest], tmp_path: Path
) -> None:
    series = []
    for service, replicas in (("demo-farrank", REPLICAS), ("other", {"c": NEIGHBOUR})):
        for instance, (tokens, speed, busy_s, refused) in replicas.items():
            by = f'job="farrank", instance="{instance}", namespace="search", service="{service}"'
            gauges = {
                f'farrank_admitted_tokens{{{by}, ranker="m"}}': f"{tokens}x10",
                f'farrank_device_tokens_per_second{{{by}, ranker="m"}}': f"{speed}x10",
                # An idle ranker changes nothing.
                f'farrank_admitted_tokens{{{by}, ranker="idle"}}': "0x10",
                f'farrank_device_tokens_per_second{{{by}, ranker="idle"}}': "7x10",
                f'farrank_device_busy_seconds_total{{{by}, device="cpu"}}': f"0+{busy_s}x10",
                f'farrank_rejections_total{{{by}, ranker="m", reason="backlog"}}': f"0+{refused}x10",
                f'farrank_rejections_total{{{by}, ranker="m", reason="deadline_too_short"}}': "0+60x10",
            }
            series += [{"series": name, "values": values} for name, values in gauges.items()]
    asked = [
        {
            "expr": f"round({triggers[name]['metadata']['query']}, 0.001)",
            "eval_time": "8m",
            "exp_samples": [{"labels": "{}", "value": value}],
        }
        for name, value in ASKED_FOR.items()
    ]
    file = tmp_path / "queries.yaml"
    test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(
        [tool("promtool"), "test", "rules", str(file)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_thresholds_are_the_values_and_for_one_replica(triggers: dict[str, Manifest]) -> None:
    for trigger in triggers.values():
        assert trigger["metricType"] == "AverageValue"
        # Missing figures must not change the number of replicas.
        assert trigger["metadata"]["ignoreNullValues"] == "false"
        assert trigger["authenticationRef"] == {"name": "prometheus"}
    scaling = {"enabled": True, "backlogSeconds": 0.5, "busyShare": 0.6, "refusalsPerSecond": 2}
    own = {
        name: float(each["metadata"]["threshold"])
        for name, each in triggers_of({"autoscaling": scaling}).items()
    }
    assert own == {"backlog": 0.5, "busy": 0.6, "refusals": 2}
    # Kubernetes computes a number of replicas from each trigger, rounded up; the largest counts.
    replicas = {name: math.ceil(ASKED_FOR[name] / threshold) for name, threshold in own.items()}
    assert replicas == {"backlog": 7, "busy": 2, "refusals": 3}


def test_where_keda_scales_the_chart_names_no_number() -> None:
    """An upgrade would otherwise reset the number."""
    scaled = Rendered(ALL)
    assert "replicas" not in scaled.one("Deployment")["spec"]
    spec = scaled.one("ScaledObject")["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 8)
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down == {
        "stabilizationWindowSeconds": 300,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
    }


def test_prometheus_finds_the_metrics_once_and_calls_the_job_farrank() -> None:
    rendered = Rendered(ALL)
    spec = rendered.one("ServiceMonitor")["spec"]
    labels = spec["selector"]["matchLabels"].items()
    (service,) = (
        each for each in rendered.all("Service").values() if labels <= each["metadata"]["labels"].items()
    )
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] in {each["name"] for each in service["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"
    assert spec["namespaceSelector"] == {"matchNames": ["search"]}
    # The rules distinguish releases by the job, also with a Prometheus for a single release.
    (relabeling,) = endpoint["relabelings"]
    assert relabeling == {"targetLabel": "job", "replacement": "farrank/demo-farrank"}
    (job,) = yaml.safe_load((DASHBOARDS / "prometheus/prometheus.yaml").read_text(encoding="utf-8"))[
        "scrape_configs"
    ]
    rules = "".join(path.read_text(encoding="utf-8") for path in (DASHBOARDS / "prometheus/rules").iterdir())
    selected = set(re.findall(r'{job=~"([^"]+)"}', rules))
    assert selected
    for each in selected:
        assert re.fullmatch(each, relabeling["replacement"])
        assert re.fullmatch(each, job["job_name"])
        assert not re.fullmatch(each, "another")
    assert 'job="' not in rules
    # KEDA's query selects this service.
    query = rendered.one("ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    assert f'service="{service["metadata"]["name"]}"' in query
    assert endpoint["authorization"]["credentials"] == {"name": "metrics-token", "key": "token"}


def test_dashboards_are_the_projects_own_each_in_a_configmap() -> None:
    labelled = {
        name: each
        for name, each in Rendered(ALL).all("ConfigMap").items()
        if "grafana_dashboard" in each["metadata"]["labels"]
    }
    held = {
        file.removeprefix("farrank-"): text
        for each in labelled.values()
        for file, text in each["data"].items()
    }
    files = {path.name: path.read_text(encoding="utf-8") for path in (DASHBOARDS / "grafana").glob("*.json")}
    assert held == files
    assert len(labelled) == len(files) == 9
    for text in held.values():
        assert json.loads(text)["title"].startswith("Farrank / ")


def test_rules_are_the_projects_own() -> None:
    held = [each["spec"] for each in Rendered(ALL).all("PrometheusRule").values()]
    files = [
        yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted((DASHBOARDS / "prometheus" / "rules").glob("*.yaml"))
    ]
    assert held == files


def test_nothing_of_operators_is_asked_for_unless_it_is_switched_on() -> None:
    """A cluster without these operators would refuse the release."""
    kinds = {each["kind"] for each in Rendered()}
    assert kinds == {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"}
