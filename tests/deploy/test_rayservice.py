"""The example for KubeRay: fields of its kind, pods for Kubernetes, the configuration our command prints."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions
from packaging.requirements import Requirement

from farrank_server.replica import CUT_GRACE_S
from support.commands import Outcome
from support.custom_resources import problems_of
from support.documentation import ROOT, Dockerfile

FILE = ROOT / "deploy" / "ray" / "rayservice.yaml"

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="needs the ray extra: pip install 'farrank[ray]'"
)


@pytest.fixture(scope="module")
def manifests() -> list[Any]:
    return list(yaml.safe_load_all(FILE.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def cluster(manifests: list[Any]) -> Any:
    return manifests[0]["spec"]["rayClusterConfig"]


@pytest.fixture(scope="module")
def serve_config(manifests: list[Any]) -> Any:
    return yaml.safe_load(manifests[0]["spec"]["serveConfigV2"])


def templates(cluster: Any) -> list[Any]:
    return [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def port_of(container: Any, name: str) -> int:
    (port,) = (each["containerPort"] for each in container["ports"] if each["name"] == name)
    return int(port)


def test_kuberay_and_kubernetes_know_every_field(manifests: list[Any], cluster: Any) -> None:
    service, grpc = manifests
    assert problems_of(service) == []
    for version in (all_versions()[-1], "1.30.0"):
        kubernetes_validate.validate(grpc, version, strict=True)
        for template in templates(cluster):
            pod = {"apiVersion": "v1", "kind": "Pod", **template}
            pod["metadata"] = {"name": "farrank", **template["metadata"]}
            kubernetes_validate.validate(pod, version, strict=True)


@needs_ray
def test_the_configuration_is_what_the_command_in_the_file_prints(
    manifests: list[Any], farrank: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", raising=False)
    (command,) = re.findall(r"^#   farrank (.*)$", FILE.read_text(encoding="utf-8"), re.MULTILINE)
    told = farrank(*shlex.split(command))
    assert told.exit_code == 0, told.err
    assert manifests[0]["spec"]["serveConfigV2"] == told.out


@needs_ray
def test_serve_takes_it_and_the_pods_have_its_ports_and_room(cluster: Any, serve_config: Any) -> None:
    from ray.serve.schema import ServeDeploySchema

    from farrank_scale.application import from_file

    deployed = ServeDeploySchema.model_validate(serve_config)
    assert deployed.http_options.host == "0.0.0.0"
    (application,) = deployed.applications
    deployment: Any = from_file(application.args)._bound_deployment
    (config,) = deployment.init_args
    for template in templates(cluster):
        (container,) = template["spec"]["containers"]
        assert port_of(container, "grpc") == config.listen.port == deployed.grpc_options.port
        assert port_of(container, "serve") == config.listen.http.port == deployed.http_options.port
    (group,) = cluster["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    assert worker["readinessProbe"]["httpGet"]["port"] == config.listen.http.port
    needed = deployment.ray_actor_options["num_cpus"]
    assert int(worker["resources"]["limits"]["cpu"]) == needed
    scaling = deployment._deployment_config.autoscaling_config
    assert (group["minReplicas"], group["maxReplicas"]) == (scaling.min_replicas, scaling.max_replicas)
    ends_s = math.ceil(config.listen.drain_timeout_s + CUT_GRACE_S)
    assert group["template"]["spec"]["terminationGracePeriodSeconds"] >= ends_s + 10


def test_the_image_is_one_with_rays_extra(cluster: Any) -> None:
    dockerfile = Dockerfile.read()
    built = re.search(
        r"--target (\w+) --build-arg MORE_EXTRAS=ray --tag (\S+) ", (ROOT / "Dockerfile").read_text()
    )
    assert built
    requirements = map(Requirement, dockerfile.requirements(MORE_EXTRAS="ray").splitlines())
    (ray,) = (each for each in requirements if each.name == "ray")
    assert str(ray.specifier) == f"=={cluster['rayVersion']}"
    for template in templates(cluster):
        (container,) = template["spec"]["containers"]
        assert container["image"] == built[2]
        user = template["spec"]["securityContext"]["runAsUser"]
        assert user == int(dockerfile.inherited(built[1], "USER")[-1])


def test_the_service_finds_the_pods_that_take_calls(manifests: list[Any], cluster: Any) -> None:
    selector = manifests[1]["spec"]["selector"]
    assert selector.pop("ray.io/serve") == "true"
    for template in templates(cluster):
        assert selector.items() <= template["metadata"]["labels"].items()
    (port,) = manifests[1]["spec"]["ports"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert port["port"] == port_of(head, port["targetPort"])
