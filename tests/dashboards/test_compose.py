"""deploy/compose.yaml without an engine: its mounts exist, and ports and names fit together."""

import re
import shlex
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from farrank_server.config.schema import ListenConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def mounts(service: dict[str, Any]) -> dict[PurePosixPath, Path]:
    """Return the mounts, as path inside → file or folder of the project, without volumes."""
    places = {}
    for volume in service["volumes"]:
        source, target, *mode = volume.split(":")
        if source.startswith("."):
            assert mode == ["ro"]
            places[PurePosixPath(target)] = (DEPLOY / source).resolve()
    return places


def load(*parts: str) -> Any:
    return yaml.safe_load(ROOT.joinpath(*parts).read_text(encoding="utf-8"))


def dockerfile(pattern: str) -> str:
    found = re.search(pattern, (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found.group(1)


def test_every_mounted_path_exists_and_lies_in_the_project(services: dict[str, Any]) -> None:
    for name in ("prometheus", "grafana"):
        assert mounts(services[name])
        for source in mounts(services[name]).values():
            assert source.exists(), source
            assert source.is_relative_to(ROOT)


def test_images_are_pinned(services: dict[str, Any]) -> None:
    assert services.keys() == {"server", "prometheus", "grafana"}
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", services[name]["image"])


def test_volumes_are_declared(services: dict[str, Any]) -> None:
    declared = load("deploy", "compose.yaml")["volumes"]
    named = {volume.split(":")[0] for each in services.values() for volume in each.get("volumes", ())}
    assert {name for name in named if not name.startswith(".")} == declared.keys()


def test_ports_are_on_loopback_and_different(services: dict[str, Any]) -> None:
    outside = []
    for service in services.values():
        for port in service["ports"]:
            host, published, _ = port.split(":")
            assert host == "127.0.0.1"
            outside.append(published)
    assert len(outside) == len(set(outside))


def test_the_server_is_the_dockerfiles(services: dict[str, Any]) -> None:
    server = services["server"]
    assert (DEPLOY / server["build"]["context"]).resolve() == ROOT
    target = server["build"]["target"]
    assert dockerfile(rf"^FROM runtime AS ({target})$")
    assert server["image"] == f"farrank:{target}"
    exposed = set(dockerfile(r"^EXPOSE (.+)$").split())
    inside = {port.rpartition(":")[2] for port in server["ports"]}
    assert inside | set(server["expose"]) == exposed
    assert (server["read_only"], server["cap_drop"]) == (True, ["ALL"])
    assert (server["tmpfs"], server["security_opt"]) == (["/tmp"], ["no-new-privileges:true"])
    # The image has a health check, and the drain ends before the process is killed.
    assert dockerfile(r"^HEALTHCHECK .* CMD (.+)$")
    assert float(server["stop_grace_period"].removesuffix("s")) > ListenConfig().drain_timeout_s


def test_prometheus_scrapes_the_servers_metrics_port(services: dict[str, Any]) -> None:
    (job,) = load("dashboards", "prometheus", "prometheus.yaml")["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert services[host]["expose"] == [port] == [dockerfile(r"FARRANK_LISTEN__METRICS_PORT=(\d+)")]


def test_prometheus_finds_its_configuration_and_rules(services: dict[str, Any]) -> None:
    service = services["prometheus"]
    places = mounts(service)
    (config,) = (
        PurePosixPath(word.partition("=")[2])
        for word in service["command"]
        if word.startswith("--config.file=")
    )
    assert places[config] == ROOT / "dashboards" / "prometheus" / "prometheus.yaml"
    for pattern in yaml.safe_load(places[config].read_text(encoding="utf-8"))["rule_files"]:
        folder = (config.parent / pattern).parent
        assert list(places[folder].glob(PurePosixPath(pattern).name)), pattern
    (data,) = (word.partition("=")[2] for word in service["command"] if "tsdb.path" in word)
    assert f"prometheus:{data}" in service["volumes"]


def test_grafana_finds_prometheus_and_the_dashboards(services: dict[str, Any]) -> None:
    places = mounts(services["grafana"])
    provisioning = places[PurePosixPath("/etc/grafana/provisioning")]
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    url = urlsplit(source["url"])
    assert url.hostname in services
    (port,) = services[url.hostname]["ports"]
    assert str(url.port) == port.rpartition(":")[2]
    (provider,) = yaml.safe_load((provisioning / "dashboards/farrank.yaml").read_text())["providers"]
    folder = places[PurePosixPath(provider["options"]["path"])]
    assert list(folder.glob("*.json"))
    home = PurePosixPath(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (places[home.parent] / home.name).exists()


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_health_checks_ask_the_port_that_is_published(name: str, services: dict[str, Any]) -> None:
    kind, *words = services[name]["healthcheck"]["test"]
    assert kind == "CMD"
    url = urlsplit(shlex.split(words[-1])[0])
    (port,) = services[name]["ports"]
    assert (url.hostname, str(url.port)) == ("127.0.0.1", port.rpartition(":")[2])
