"""The chart as a whole: Helm and each Kubernetes accept it, and wrong values are refused by name."""

from __future__ import annotations

import importlib.util
import json
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, HelmError, helm_sdk_version, lint, package
from kubernetes_validate.utils import all_versions

from farrank_server.config.schema import ServerConfig
from support.custom_resources import CUSTOM, problems_of
from support.documentation import ROOT
from support.helm_chart import ALL, CHART, VALUES, Rendered, Values, chart

NEWEST = kubernetes_validate.latest_version()
LEAST = "1.30.0"


def versions() -> list[str]:
    """The oldest Kubernetes that the chart supports, two between, and the newest that is known here."""
    known = sorted(set(all_versions()), key=lambda each: int(each.split(".")[1]))
    meant = known[known.index(LEAST) :]
    return [meant[0], meant[len(meant) // 3], meant[2 * len(meant) // 3], meant[-1]]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("kubernetes", [LEAST, NEWEST])
def test_helm_finds_nothing_to_complain_of(values: Values, kubernetes: str) -> None:
    report = lint(CHART, dict(values), strict=True, kube_version=f"v{kubernetes}")
    assert report["total_charts_linted"] == 1
    # 1 is information, 2 a warning, 3 an error.
    assert [each for each in report["messages"] if each["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize("kubernetes", versions())
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_kubernetes_knows_every_field(values: Values, kubernetes: str) -> None:
    kinds = set()
    for manifest in Rendered(values):
        kinds.add(manifest["kind"])
        if manifest["kind"] in CUSTOM:
            assert problems_of(manifest) == []
        else:
            assert kubernetes.startswith(kubernetes_validate.validate(manifest, kubernetes, strict=True))
    assert {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"} <= kinds
    if values is ALL:
        assert kinds > {"NetworkPolicy", "ScaledObject", "ServiceMonitor", "PrometheusRule"}


def test_a_field_that_kubernetes_does_not_know_would_be_found() -> None:
    deployment = Rendered().one("Deployment")
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 50
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(deployment, NEWEST, strict=True)


def test_the_least_kubernetes_is_the_charts() -> None:
    assert chart().metadata["kubeVersion"] == f">={LEAST}-0"


def test_helm_is_one_of_the_fourth_line() -> None:
    assert helm_sdk_version().lstrip("v").startswith("4.")


def test_names_are_unique_and_labelled() -> None:
    seen = set()
    for manifest in Rendered(ALL):
        name = (manifest["kind"], manifest["metadata"]["name"])
        assert name not in seen
        seen.add(name)
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "farrank"
        assert labels["app.kubernetes.io/instance"] == "demo"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_long_names_stay_within_what_kubernetes_allows() -> None:
    name = "a-release-with-a-name-that-is-as-long-as-it-may-be-00"
    for text in chart().render(dict(ALL), name=name, namespace="n").values():
        for manifest in filter(None, yaml.safe_load_all(text)) if "kind:" in text else ():
            assert len(manifest["metadata"]["name"]) <= 63, manifest["kind"]


def test_a_packaged_chart_is_whole_and_renders_the_same(tmp_path: Path) -> None:
    """Dashboards and rules are links in the checkout, but files in the package."""
    archive = Path(package(CHART, destination=tmp_path))
    with tarfile.open(archive) as opened:
        members = {each.name: each for each in opened.getmembers()}
    assert all(each.isfile() for each in members.values())
    for path in (ROOT / "dashboards" / "grafana").glob("*.json"):
        assert f"farrank/dashboards/{path.name}" in members
    assert not any("provisioning" in name for name in members)
    with Chart.load(archive) as packaged:
        assert packaged.render(dict(ALL), name="demo", namespace="search") == Rendered(ALL).files


def test_the_charts_version_is_the_projects() -> None:
    assert chart().metadata["version"] == chart().metadata["appVersion"] == version("farrank")


def test_the_schema_of_values_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("write_schema", ROOT / "deploy/helm/write_schema.py")
    assert spec is not None
    assert spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    written = (CHART / "values.schema.json").read_text(encoding="utf-8")
    assert written == writer.text(), "python deploy/helm/write_schema.py writes it anew"


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def compare(declared: Any, given: Any, path: str) -> None:
        if "$ref" in declared:
            declared = schema["definitions"][declared["$ref"].rpartition("/")[2]]
        # Empty mappings, such as an init container's, have no keys to compare.
        if not given or not isinstance(given, dict) or "properties" not in declared or path == "config":
            return
        # Kubernetes has defaults for those times of a probe that the chart does not set.
        if path.endswith("Probe"):
            assert given.keys() <= declared["properties"].keys()
            return
        assert declared["additionalProperties"] is False, path
        for name, value in given.items():
            compare(declared["properties"][name], value, name)
        assert declared["properties"].keys() - {"global"} == given.keys()

    compare(schema, values, "")


WRONG = {
    "an unknown value": ({"replica": 3}, "'replica' not allowed"),
    "a wrong type": ({"replicas": "two"}, "at '/replicas': got string, want integer"),
    "an unknown key of the server's": (
        {"config": {"limits": {"max_documnts": 3}}},
        "at '/config/limits': additional properties 'max_documnts' not allowed",
    ),
    "a wrong type of the server's": (
        {"config": {"listen": {"drain_timeout_s": "30"}}},
        "at '/config/listen/drain_timeout_s': got string, want number",
    ),
    "a number beyond the server's limit": (
        {"config": {"limits": {"max_documents": 0}}},
        "at '/config/limits/max_documents': minimum: got 0, want 1",
    ),
    "an unknown key of a ranker": (
        {"rankers": [{"name": "mine", "sorce": "/models/mine"}]},
        "at '/rankers/0': additional properties 'sorce' not allowed",
    ),
    "no ranker": ({"rankers": []}, "at '/rankers': minItems: got 0, want 1"),
    "an index without what its kind needs": (
        {"config": {"first_stage": {"indexes": {"docs": {"kind": "dense", "path": "/indexes/docs"}}}}},
        "at '/config/first_stage/indexes/docs': missing property 'encoder'",
    ),
    "a key that the chart sets": (
        {"config": {"listen": {"port": 1234}}},
        "config.listen.port: .* ports.grpc",
    ),
    "another": ({"config": {"listen": {"http": {"port": 1}}}}, "config.listen.http.port: .* ports.http"),
    "rankers whose order would be lost": (
        {"config": {"rankers": {"mine": {"source": "x"}}}},
        "config.rankers: set rankers, a list",
    ),
    "a name twice": ({"rankers": [{"name": "a"}, {"name": "a"}]}, 'rankers: "a" is listed twice'),
    "configuration beside the configuration": (
        {"env": [{"name": "FARRANK_LISTEN__DRAIN_TIMEOUT_S", "value": "300"}]},
        "env: FARRANK_LISTEN__DRAIN_TIMEOUT_S is refused",
    ),
    "one port for two endpoints": ({"ports": {"http": 9090}}, "ports: grpc, http and metrics must differ"),
    "a rollout that cannot move": (
        {"rollingUpdate": {"maxSurge": 0}},
        "both 0; no pod could ever be replaced",
    ),
    "fewer at most than at least": (
        {"autoscaling": {"enabled": True, "minReplicas": 9}},
        "minReplicas 9 is above maxReplicas 8",
    ),
    "a name that would be all names": (
        {"modelNames": [{"name": "*", "ranker": "minilm"}]},
        r"modelNames: \* would set every name",
    ),
    "two volumes in one": (
        {"cache": {"volume": {"emptyDir": {}, "hostPath": {"path": "/x"}}}},
        "at '/cache/volume': maxProperties: got 2, want 1",
    ),
    "a repository with a tag": (
        {"image": {"repository": "registry.example/farrank:cpu"}},
        "at '/image/repository': 'registry.example/farrank:cpu' does not match pattern",
    ),
    "a proxy without a tag": (
        {"envoy": {"image": {"tag": ""}}},
        "at '/envoy/image/tag': minLength: got 0, want 1",
    ),
    "a policy that lets everybody in": (
        {"networkPolicy": {"callers": []}},
        "at '/networkPolicy/callers': minItems",
    ),
}


@pytest.mark.parametrize(("values", "message"), WRONG.values(), ids=WRONG)
def test_wrong_values_are_refused_by_name(values: Values, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        Rendered(values)


def test_a_kind_of_first_stage_of_another_package_is_taken() -> None:
    indexes = {"docs": {"kind": "mine", "shards": 4}}
    assert "shards: 4" in Rendered({"config": {"first_stage": {"indexes": indexes}}}).config_text


def test_the_schema_has_every_key_of_the_configuration() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["definitions"]["config"]["properties"].keys() == ServerConfig.__dataclass_fields__.keys()
