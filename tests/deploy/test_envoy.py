"""The chart's proxy: Envoy itself accepts its configuration, and its pods match it."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from farrank_server.service.methods import SERVICE
from support import envoys
from support.documentation import ROOT
from support.envoys import PROGRAM, write_files
from support.helm_chart import Rendered, Values
from support.tls_files import TlsFiles

ENVOY: Values = {"envoy": {"enabled": True}}
TLS: Values = {**ENVOY, "tls": {"secretName": "certificate"}}


def configuration(values: Values) -> Any:
    return envoys.configuration(Rendered(values))


@pytest.mark.parametrize("values", [ENVOY, TLS], ids=["plaintext", "TLS"])
def test_envoy_takes_its_configuration(values: Values, tls_files: TlsFiles, tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    shutil.copy(tls_files.certificate, tmp_path / "tls" / "tls.crt")
    shutil.copy(tls_files.private_key, tmp_path / "tls" / "tls.key")
    file = write_files(Rendered(values), tmp_path, tmp_path / "tls")
    command = [PROGRAM, "--mode", "validate", "--config-path", str(file), "--log-level", "warning"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "eprecated" not in done.stdout + done.stderr


def test_the_file_for_replicas_outside_of_kubernetes_is_the_same_template() -> None:
    spec = importlib.util.spec_from_file_location("write_envoy", ROOT / "deploy/envoy/write_envoy.py")
    assert spec is not None
    assert spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    written = (ROOT / "deploy/envoy/envoy.yaml").read_text(encoding="utf-8")
    assert written == writer.text(), "python deploy/envoy/write_envoy.py writes it anew"
    # Except for the addresses, it is the chart's configuration.
    outside, inside = yaml.safe_load(written), configuration(ENVOY)
    for each in (outside, inside):
        for listener in each["static_resources"]["listeners"]:
            del listener["address"]
            manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
            # A pod waits for this time when it ends; a process outside of Kubernetes does not.
            manager.get("common_http_protocol_options", {}).pop("max_connection_duration", None)
        each["static_resources"]["clusters"][-1].pop("load_assignment")
    assert outside == inside


def test_deadlines_are_the_callers_own() -> None:
    (calls, _) = configuration(ENVOY)["static_resources"]["listeners"]
    manager = calls["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    assert host["routes"][-1]["route"] == {
        "cluster": "replicas",
        "timeout": "0s",
        "max_stream_duration": {"grpc_timeout_header_max": "0s"},
    }
    assert manager["stream_idle_timeout"] == "0s"


def test_replicas_are_found_by_their_service_and_asked_for_their_health() -> None:
    rendered = Rendered(ENVOY)
    (_, cluster) = configuration(ENVOY)["static_resources"]["clusters"]
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
    admin = configuration(TLS)["admin"]["address"]["socket_address"]
    assert admin["address"] == "127.0.0.1"


@pytest.mark.parametrize("connection_s", [1, 60])
def test_a_proxy_goes_on_until_its_callers_must_have_left_it(connection_s: int) -> None:
    """A caller may connect while services still list the pod, keep its connection, and begin a last call."""
    values = {
        "envoy": {"enabled": True, "connectionSeconds": connection_s, "drainSeconds": 20},
        "preStopSeconds": 7,
    }
    calls, _ = configuration(values)["static_resources"]["listeners"]
    manager = calls["filter_chains"][0]["filters"][0]["typed_config"]
    options = manager["common_http_protocol_options"]
    assert options == {"max_connection_duration": f"{connection_s}s"}
    drain_s = int(manager["drain_timeout"].removesuffix("s"))
    (container,) = Rendered(values).one("Deployment", "demo-farrank-envoy")["spec"]["template"]["spec"][
        "containers"
    ]
    # Kubernetes itself sleeps, so the image needs no program: a distroless one works.
    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": 7 + connection_s + drain_s + 20}}}
    assert container["command"] == ["envoy"]


def test_envoy_draws_as_many_replicas_as_the_values_say() -> None:
    for values, choices in ((ENVOY, 8), ({"envoy": {"enabled": True, "choices": 2}}, 2)):
        cluster = configuration(values)["static_resources"]["clusters"][-1]
        assert cluster["least_request_lb_config"] == {"choice_count": choices}
