"""What KEDA would ask to scale a release, asked of a server under load."""

import pytest

from support.helm_chart import Manifest, Rendered
from support.prometheus import Prometheus


@pytest.fixture(scope="module")
def triggers() -> dict[str, Manifest]:
    # Outside of a cluster there is the job alone to select by.
    scaling = {"enabled": True, "selector": 'job="farrank"'}
    found = Rendered({"autoscaling": scaling}).one("ScaledObject")["spec"]["triggers"]
    return {each["name"]: each for each in found}


@pytest.mark.parametrize("name", ["backlog", "busy", "refusals"])
def test_a_server_under_load_has_what_each_trigger_asks_for(
    name: str, triggers: dict[str, Manifest], prometheus: Prometheus
) -> None:
    query = triggers[name]["metadata"]["query"]
    # KEDA takes a single figure.
    assert prometheus.series(query) == [{}]
    assert prometheus.largest(query) > 0


def test_a_server_that_had_no_call_has_figures_of_0(
    triggers: dict[str, Manifest], prometheus: Prometheus
) -> None:
    """Without figures KEDA keeps the number of replicas, so that an idle release would never shrink."""
    for each in triggers.values():
        answer = prometheus.ask("query", query=each["metadata"]["query"], time=prometheus.began_s)
        assert [(one["metric"], float(one["value"][1])) for one in answer["result"]] == [({}, 0.0)]


def test_the_device_is_never_busier_than_its_time(
    triggers: dict[str, Manifest], prometheus: Prometheus
) -> None:
    assert prometheus.largest(triggers["busy"]["metadata"]["query"]) <= 1.2
