"""Values for the placement of pods, containers next to the server, and callers from outside."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python import HelmError, lint

from support.custom_resources import CUSTOM, problems_of
from support.documentation import ROOT
from support.helm_chart import CHART, Manifest, Rendered, Values

CLAIM: Values = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "20Gi"}}}
ZONES: Values = {
    "maxSkew": 2,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "DoNotSchedule",
}
AFFINITY: Values = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
        }
    }
}
PLACES: Values = {
    "topologySpreadConstraints": [ZONES],
    "affinity": AFFINITY,
    "nodeSelector": {"pool": "reranking"},
    "tolerations": [{"key": "reranking", "operator": "Exists"}],
    "priorityClassName": "important",
    "podLabels": {"team": "search"},
    "podAnnotations": {"note": "yes"},
}
SIDECAR: Values = {"name": "log-shipper", "image": "example/shipper:1.0.0"}
OPTIONS: Values = {
    **PLACES,
    "envoy": {
        **PLACES,
        "enabled": True,
        "service": {
            "type": "LoadBalancer",
            "annotations": {"balancer": "internal"},
            "trafficDistribution": "PreferClose",
        },
    },
    "service": {"trafficDistribution": "PreferClose"},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "64m"},
        "hosts": ["rerank.example", "other.example"],
        "tls": [{"secretName": "public", "hosts": ["rerank.example"]}],
    },
    "grpcRoute": {
        "enabled": True,
        "parentRefs": [{"name": "gateway", "namespace": "gateways"}],
        "hostnames": ["grpc.rerank.example"],
    },
    "startupProbe": {"periodSeconds": 10},
    "readinessProbe": {"failureThreshold": 3, "initialDelaySeconds": 1},
    "livenessProbe": {"timeoutSeconds": 20},
    "extraContainers": [SIDECAR],
    "extraInitContainers": [{"name": "wait", "image": "example/wait:1.0.0"}],
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "{{ .Release.Name }}-synonyms"},
            "data": {"synonyms.txt": "sea, ocean"},
        }
    ],
    "data": {"models": {"claim": CLAIM, "init": {"image": "example/fetch:1.0.0"}}},
    "cache": {"claim": {**CLAIM, "storageClassName": "fast"}},
    "podSecurityContext": {"runAsUser": 20000, "fsGroup": None},
    "securityContext": {"readOnlyRootFilesystem": False},
}


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return Rendered(OPTIONS)


def pods(rendered: Rendered) -> dict[str, Manifest]:
    return {name: each["spec"]["template"] for name, each in rendered.all("Deployment").items()}


def test_helm_and_each_kubernetes_take_them(rendered: Rendered) -> None:
    report = lint(CHART, dict(OPTIONS), strict=True, kube_version="v1.30.0")
    assert report["errors"] == []
    for manifest in rendered:
        if manifest["kind"] in CUSTOM:
            assert problems_of(manifest) == []
            continue
        for version in ("1.30.0", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(manifest, version, strict=True)
    kinds = {each["kind"] for each in rendered}
    assert kinds > {"Ingress", "GRPCRoute", "PersistentVolumeClaim"}


def test_replicas_and_proxies_are_spread_over_zones_and_nodes_unless_the_values_say_otherwise(
    rendered: Rendered,
) -> None:
    for name, pod in pods(Rendered({"envoy": {"enabled": True}})).items():
        constraints = pod["spec"]["topologySpreadConstraints"]
        keys = [each["topologyKey"] for each in constraints]
        assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"], name
        for each in constraints:
            assert each["whenUnsatisfiable"] == "ScheduleAnyway"
            assert each["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    for pod in pods(rendered).values():
        (constraint,) = pod["spec"]["topologySpreadConstraints"]
        assert {**constraint, "labelSelector": None} == {**ZONES, "labelSelector": None}
    own = {**ZONES, "labelSelector": {"matchLabels": {"team": "search"}}}
    spread = Rendered({"topologySpreadConstraints": [own]}).pod["spec"]["topologySpreadConstraints"]
    assert spread == [own]
    assert "topologySpreadConstraints" not in Rendered({"topologySpreadConstraints": []}).pod["spec"]


def test_pods_go_where_the_values_say(rendered: Rendered) -> None:
    for pod in pods(rendered).values():
        for name in ("affinity", "nodeSelector", "tolerations", "priorityClassName"):
            assert pod["spec"][name] == PLACES[name]
        assert pod["metadata"]["labels"]["team"] == "search"
        assert pod["metadata"]["annotations"]["note"] == "yes"


def test_security_contexts_are_the_values_over_the_defaults(rendered: Rendered) -> None:
    for pod in pods(rendered).values():
        assert pod["spec"]["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 20000,
            "runAsGroup": 10001,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            if container["name"] not in ("log-shipper", "wait"):
                assert container["securityContext"]["readOnlyRootFilesystem"] is False
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_other_containers_run_with_and_before_the_server(rendered: Rendered) -> None:
    spec = rendered.pod["spec"]
    assert spec["containers"][1:] == [SIDECAR]
    assert [each["name"] for each in spec["initContainers"]] == ["models", "wait"]
    alone = Rendered({"extraInitContainers": [SIDECAR]}).pod["spec"]
    assert alone["initContainers"] == [SIDECAR]


def test_whole_objects_belong_to_the_release(rendered: Rendered) -> None:
    assert rendered.one("ConfigMap", "demo-synonyms")["data"] == {"synonyms.txt": "sea, ocean"}


def test_a_claim_of_the_charts_is_mounted_and_outlives_the_release(rendered: Rendered) -> None:
    claims = rendered.all("PersistentVolumeClaim")
    assert claims.keys() == {"demo-farrank-models", "demo-farrank-cache"}
    assert claims["demo-farrank-models"]["spec"] == CLAIM
    assert claims["demo-farrank-cache"]["spec"]["storageClassName"] == "fast"
    for claim in claims.values():
        assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    volumes = {each["name"]: each for each in rendered.pod["spec"]["volumes"]}
    for name in ("models", "cache"):
        assert volumes[name]["persistentVolumeClaim"] == {"claimName": f"demo-farrank-{name}"}
    mounts = {each["name"]: each for each in rendered.pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["models"]["readOnly"] is True
    assert mounts["cache"]["mountPath"] == "/cache"


def test_probes_take_other_times_and_keep_what_they_ask(rendered: Rendered) -> None:
    server, usual = rendered.pod["spec"]["containers"][0], Rendered().server
    asked = {"startupProbe": "grpc", "readinessProbe": "grpc", "livenessProbe": "httpGet"}
    for name, way in asked.items():
        assert server[name][way] == usual[name][way]
    # The start may take as long as before.
    assert (server["startupProbe"]["periodSeconds"], server["startupProbe"]["failureThreshold"]) == (10, 60)
    assert server["readinessProbe"] == usual["readinessProbe"] | {
        "failureThreshold": 3,
        "initialDelaySeconds": 1,
    }
    assert server["livenessProbe"]["timeoutSeconds"] == 20
    assert "livenessProbe" not in Rendered({"livenessProbe": None}).server
    own = Rendered({"startupProbe": {"failureThreshold": 7}}).server["startupProbe"]
    assert own["failureThreshold"] == 7


def test_callers_from_outside_reach_http_by_an_ingress(rendered: Rendered) -> None:
    spec = rendered.one("Ingress")["spec"]
    assert spec["ingressClassName"] == "nginx"
    assert spec["tls"] == OPTIONS["ingress"]["tls"]
    assert [rule["host"] for rule in spec["rules"]] == ["rerank.example", "other.example"]
    for rule in spec["rules"]:
        (path,) = rule["http"]["paths"]
        backend = path["backend"]["service"]
        service = rendered.one("Service", backend["name"])
        assert backend["port"]["name"] in {each["name"] for each in service["spec"]["ports"]}
        assert (path["path"], path["pathType"], backend["port"]["name"]) == ("/", "Prefix", "http")


@pytest.mark.parametrize(
    ("envoy", "service", "port"),
    [(True, "demo-farrank-envoy", 50051), (False, "demo-farrank-replicas", 1234)],
)
def test_callers_from_outside_reach_grpc_by_a_gateway(envoy: bool, service: str, port: int) -> None:
    rendered = Rendered({**OPTIONS, "envoy": {"enabled": envoy}, "ports": {"grpc": 1234}})
    spec = rendered.one("GRPCRoute")["spec"]
    assert spec["parentRefs"] == OPTIONS["grpcRoute"]["parentRefs"]
    assert spec["hostnames"] == ["grpc.rerank.example"]
    assert spec["rules"] == [{"backendRefs": [{"name": service, "port": port}]}]
    assert port in {each["port"] for each in rendered.one("Service", service)["spec"]["ports"]}


def test_services_keep_calls_in_their_zone_where_the_values_say_so(rendered: Rendered) -> None:
    for name in ("demo-farrank", "demo-farrank-envoy"):
        assert rendered.one("Service", name)["spec"]["trafficDistribution"] == "PreferClose"
    # gRPC clients connect to the replicas' addresses and bypass kube-proxy.
    assert "trafficDistribution" not in rendered.one("Service", "demo-farrank-replicas")["spec"]
    envoy = rendered.one("Service", "demo-farrank-envoy")
    assert envoy["spec"]["type"] == "LoadBalancer"
    assert envoy["metadata"]["annotations"] == {"balancer": "internal"}


def test_a_rollout_and_an_emptied_node_move_a_share_of_the_replicas() -> None:
    """Kubernetes rounds shares up, so two replicas move one at a time. For 120 this would take 80 minutes."""
    rendered = Rendered({"envoy": {"enabled": True}})
    for name, deployment in rendered.all("Deployment").items():
        update = deployment["spec"]["strategy"]["rollingUpdate"]
        assert update == {"maxSurge": "25%", "maxUnavailable": 0}, name
    assert rendered.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == "10%"
    assert rendered.one("PodDisruptionBudget", "demo-farrank-envoy")["spec"]["maxUnavailable"] == "25%"


def test_the_values_that_the_page_shows_render() -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text(encoding="utf-8")
    examples = [
        yaml.safe_load(each) for each in re.findall(r"^```yaml\n(.+?)^```", page, re.MULTILINE | re.DOTALL)
    ]
    assert len(examples) >= 2
    for values in examples:
        for manifest in Rendered(values):
            if manifest["apiVersion"].partition("/")[0] in {"v1", "apps", "policy", "networking.k8s.io"}:
                kubernetes_validate.validate(manifest, "1.30.0", strict=True)
            elif manifest["kind"] in CUSTOM:
                assert problems_of(manifest) == []


WRONG: dict[str, tuple[Any, str]] = {
    "a volume and a claim": (
        {"cache": {"claim": CLAIM, "volume": {"emptyDir": {}}}},
        "cache: both a volume and a claim are set",
    ),
    "both for models": (
        {"data": {"models": {"claim": CLAIM, "volume": {"emptyDir": {}}}}},
        r"data\.models: both a volume and a claim are set",
    ),
    "a claim of no size": (
        {"cache": {"claim": {"accessModes": ["ReadWriteMany"]}}},
        "(?s)at '/cache/claim'.*missing property 'resources'",
    ),
    "an ingress without hosts": ({"ingress": {"enabled": True}}, "ingress: hosts is empty"),
    "an ingress without HTTP": (
        {"ingress": {"enabled": True, "hosts": ["x.example"]}, "ports": {"http": None}},
        "ingress: it needs HTTP",
    ),
    "a route without a gateway": ({"grpcRoute": {"enabled": True}}, "grpcRoute: parentRefs is empty"),
    "a probe that asks something else": (
        {"livenessProbe": {"exec": {"command": ["true"]}}},
        "at '/livenessProbe': additional properties 'exec' not allowed",
    ),
    "an unknown zone rule": (
        {"service": {"trafficDistribution": "Nearby"}},
        "at '/service/trafficDistribution': value must be one of",
    ),
    "an object of no kind": ({"extraObjects": [{"metadata": {}}]}, "(?s)at '/extraObjects/0'.*missing"),
    "a container without a name": (
        {"extraContainers": [{"image": "x"}]},
        "at '/extraContainers/0': missing property 'name'",
    ),
}


@pytest.mark.parametrize(("values", "message"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_refused_by_name(values: Values, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        Rendered(values)
