"""What KEDA would ask to scale a release, asked of a server under load."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.prometheus import Prometheus

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "farrank"

# In a process of its own: Helm's engine has crashed in processes that had servers in them before.
RENDER = """
import json, sys
from helm_python import Chart
chart, values = sys.argv[1:]
print(json.dumps(Chart.load(chart).render(json.loads(values), name="demo", namespace="search")))
"""

Trigger = dict[str, Any]


@pytest.fixture(scope="module")
def triggers() -> dict[str, Trigger]:
    # Outside of a cluster there is the job alone to select by.
    values = {"autoscaling": {"enabled": True, "selector": 'job="farrank"'}}
    command = [sys.executable, "-c", RENDER, str(CHART), json.dumps(values)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    manifests = [
        manifest
        for path, text in json.loads(done.stdout).items()
        if path.endswith(".yaml")
        for manifest in yaml.safe_load_all(text)
    ]
    (scaled,) = (each for each in manifests if each and each["kind"] == "ScaledObject")
    return {each["name"]: each for each in scaled["spec"]["triggers"]}


@pytest.mark.parametrize("name", ["backlog", "busy", "refusals"])
def test_a_server_under_load_has_what_each_trigger_asks_for(
    name: str, triggers: dict[str, Trigger], prometheus: Prometheus
) -> None:
    query = triggers[name]["metadata"]["query"]
    # KEDA takes a single figure.
    assert prometheus.series(query) == [{}]
    assert prometheus.largest(query) > 0


def test_a_server_that_had_no_call_has_figures_of_0(
    triggers: dict[str, Trigger], prometheus: Prometheus
) -> None:
    """Without figures KEDA keeps the number of replicas, so that an idle release would never shrink."""
    for each in triggers.values():
        answer = prometheus.ask("query", query=each["metadata"]["query"], time=prometheus.began_s)
        assert [(one["metric"], float(one["value"][1])) for one in answer["result"]] == [({}, 0.0)]


def test_the_device_is_never_busier_than_its_time(
    triggers: dict[str, Trigger], prometheus: Prometheus
) -> None:
    assert prometheus.largest(triggers["busy"]["metadata"]["query"]) <= 1.2
