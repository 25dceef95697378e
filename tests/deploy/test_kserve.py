"""The example for KServe: its kind's fields, Kubernetes' pod fields, the command's arguments."""

from __future__ import annotations

import math
import re
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from farrank_cli.commands import serve
from farrank_server.config.schema import ServerConfig
from farrank_server.config.server_config import build_config
from farrank_server.metrics import Metrics
from farrank_server.replica import CUT_GRACE_S
from farrank_server.service.methods import SERVICE
from support.custom_resources import OF_A_PREDICTOR, problems_of
from support.documentation import ROOT, Dockerfile
from support.helm_chart import arguments

FILE = ROOT / "deploy" / "kserve" / "inferenceservice.yaml"


@pytest.fixture(scope="module")
def service() -> Any:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def config(service: Any) -> ServerConfig:
    (container,) = service["spec"]["predictor"]["containers"]
    variables = Dockerfile.read().environment("cpu")
    variables |= {each["name"]: each["value"] for each in container["env"]}
    return build_config(serve.read_settings(arguments(container), variables))


def test_kserve_and_kubernetes_know_every_field(service: Any) -> None:
    assert problems_of(service) == []
    predictor = service["spec"]["predictor"]
    own = {name: predictor[name] for name in predictor if name in OF_A_PREDICTOR["properties"]}
    assert problems_of(own, OF_A_PREDICTOR) == []
    pod = {name: value for name, value in predictor.items() if name not in own}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "farrank"}, "spec": pod}
    for version in (all_versions()[-1], "1.30.0"):
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_server_takes_its_arguments_and_the_model_is_where_kserve_puts_it(
    service: Any, config: ServerConfig
) -> None:
    (container,) = service["spec"]["predictor"]["containers"]
    assert container["name"] == "kserve-container"
    assert {each["name"] for each in container["env"]} >= {"STORAGE_URI"}
    assert config.rankers[config.default_ranker].source == "/mnt/models"
    # KServe takes only one port: HTTP's.
    (port,) = container["ports"]
    assert port["containerPort"] == config.listen.http.port
    assert config.listen.host == "0.0.0.0"


def test_it_begins_and_ends_as_a_release_of_the_chart(service: Any, config: ServerConfig) -> None:
    predictor = service["spec"]["predictor"]
    (container,) = predictor["containers"]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["grpc"] == {"port": config.listen.port, "service": SERVICE.full_name}
    sleeps_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed_s = math.ceil(sleeps_s + config.listen.drain_timeout_s + CUT_GRACE_S)
    assert predictor["terminationGracePeriodSeconds"] >= needed_s + 10
    assert predictor["securityContext"]["runAsUser"] == int(Dockerfile.read().inherited("cpu", "USER")[-1])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_it_scales_by_metrics_of_the_server(service: Any) -> None:
    (metric,) = service["spec"]["predictor"]["autoScaling"]["metrics"]
    asked = set(re.findall(r"\bfarrank_\w+", metric["external"]["metric"]["query"]))
    assert asked == {"farrank_admitted_tokens", "farrank_device_tokens_per_second"}
    assert asked <= {family.name for family in Metrics().registry.collect()}
