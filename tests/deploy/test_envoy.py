"""The proxy of the chart: Envoy itself takes its configuration, which adds no time and no try to any call."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from farrank_server.service.methods import SERVICE
from support.helm_chart import Rendered, Values
from support.tls_files import TlsFiles

ENVOY: Values = {"envoy": {"enabled": True}}
TLS: Values = {**ENVOY, "tls": {"secretName": "certificate"}}


def configuration(values: Values) -> Any:
    return yaml.safe_load(Rendered(values).one("ConfigMap", "demo-farrank-envoy")["data"]["envoy.yaml"])


@pytest.mark.parametrize("values", [ENVOY, TLS], ids=["plaintext", "TLS"])
def test_envoy_takes_its_configuration(values: Values, tls_files: TlsFiles, tmp_path: Path) -> None:
    program = shutil.which("envoy")
    if program is None:
        pytest.skip("envoy is not installed")
    text = Rendered(values).one("ConfigMap", "demo-farrank-envoy")["data"]["envoy.yaml"]
    files = {
        "tls.crt": tls_files.certificate,
        "tls.key": tls_files.private_key,
        "ca.crt": tls_files.authority,
    }
    for name, path in files.items():
        text = text.replace(f"/etc/farrank/tls/{name}", str(path))
    assert "/etc/farrank" not in text
    file = tmp_path / "envoy.yaml"
    file.write_text(text, encoding="utf-8")
    command = [program, "--mode", "validate", "--config-path", str(file), "--log-level", "warning"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "eprecated" not in done.stdout + done.stderr


def test_deadlines_and_refusals_are_the_replicas_own() -> None:
    (calls, _) = configuration(ENVOY)["static_resources"]["listeners"]
    manager = calls["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    (only,) = host["routes"]
    assert only["route"] == {
        "cluster": "replicas",
        "timeout": "0s",
        "max_stream_duration": {"grpc_timeout_header_max": "0s"},
    }
    assert "retry_policy" not in host
    assert manager["stream_idle_timeout"] == "0s"


def test_replicas_are_found_by_their_service_and_asked_for_their_health() -> None:
    rendered = Rendered(ENVOY)
    (cluster,) = configuration(ENVOY)["static_resources"]["clusters"]
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    address = endpoint["address"]["socket_address"]
    name, namespace, _ = address["address"].split(".")
    service = rendered.one("Service", name)
    assert (service["spec"]["clusterIP"], namespace) == ("None", "search")
    assert address["port_value"] == service["spec"]["ports"][0]["port"]
    assert cluster["lb_policy"] == "LEAST_REQUEST"
    (check,) = cluster["health_checks"]
    assert check["grpc_health_check"] == {"service_name": SERVICE.full_name}


def test_its_pods_have_the_ports_that_it_listens_at_and_the_time_to_end() -> None:
    rendered = Rendered(TLS)
    pod = rendered.one("Deployment", "demo-farrank-envoy")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    listens = {
        each["address"]["socket_address"]["port_value"]
        for each in configuration(TLS)["static_resources"]["listeners"]
    }
    assert {each["containerPort"] for each in container["ports"]} == listens
    sleeps_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > sleeps_s
    (config,) = (each for each in container["volumeMounts"] if each["name"] == "config")
    assert container["args"][:2] == ["--config-path", f"{config['mountPath']}/envoy.yaml"]
    assert "admin" not in configuration(TLS)
