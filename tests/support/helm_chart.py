"""The chart as Helm renders it, and its container's configuration as the real command reads it."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

from farrank_cli.commands import serve
from farrank_cli.main import load
from farrank_server.config.schema import ServerConfig
from farrank_server.config.server_config import build_config
from support.documentation import ROOT, Dockerfile

CHART = ROOT / "deploy" / "helm" / "farrank"
RELEASE, NAMESPACE = "demo", "search"

Manifest = dict[str, Any]
Values = Mapping[str, Any]

# Everything that can be enabled.
ALL: Values = {
    "metrics": {
        "tokenSecretName": "metrics-token",
        "serviceMonitor": {"enabled": True},
        "rules": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "autoscaling": {"enabled": True, "authenticationName": "prometheus"},
    "envoy": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "tls": {"secretName": "certificate"},
    "apiKeys": {"secretName": "api-keys"},
    "data": {
        "models": {"init": {"image": "example/fetch:1.0.0", "args": ["s3://models", "/models"]}},
        "indexes": {"volume": {"persistentVolumeClaim": {"claimName": "indexes"}}},
    },
    "modelNames": [{"name": "rerank-*", "ranker": "minilm"}, {"name": "**", "ranker": ""}],
    "config": {"device": {"name": "cpu"}, "limits": {"max_queued_tokens": 123456789}},
}


def overlay(name: str) -> Values:
    """Read a file of values that overrides the chart's own."""
    read: Values = yaml.safe_load((CHART / name).read_text(encoding="utf-8"))
    return read


VALUES: Mapping[str, Values] = {
    "as it is": {},
    "cpu": overlay("values-cpu.yaml"),
    "gpu": overlay("values-gpu.yaml"),
    "everything": ALL,
}


@functools.cache
def chart() -> Chart:
    return Chart.load(CHART)


class Rendered:
    """The manifests of a release with these values."""

    def __init__(self, values: Values | None = None) -> None:
        self.files = chart().render(dict(values or {}), name=RELEASE, namespace=NAMESPACE)
        self._manifests: list[Manifest] = [
            manifest
            for path, text in self.files.items()
            if path.endswith(".yaml")
            for manifest in yaml.load_all(text, yaml.CSafeLoader)
            if manifest
        ]

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self._manifests)

    def all(self, kind: str) -> dict[str, Manifest]:
        return {each["metadata"]["name"]: each for each in self if each["kind"] == kind}

    def one(self, kind: str, name: str = "demo-farrank") -> Manifest:
        return self.all(kind)[name]

    @property
    def pod(self) -> Manifest:
        """Return the pod of a replica."""
        pod: Manifest = self.one("Deployment")["spec"]["template"]
        return pod

    @property
    def server(self) -> Manifest:
        """Return the server's container."""
        (container,) = self.pod["spec"]["containers"]
        found: Manifest = container
        return found

    @property
    def config_text(self) -> str:
        text: str = self.one("ConfigMap")["data"]["farrank.yaml"]
        return text


def arguments(container: Manifest, target: str = "cpu") -> argparse.Namespace:
    """Parse a container's arguments with the command's own parser."""
    assert "command" not in container, "the image's entry point is the command"
    name, *rest = container["args"]
    assert Dockerfile.read().inherited(target, "ENTRYPOINT")[-1] == '["farrank"]'
    parser = argparse.ArgumentParser(exit_on_error=False)
    load(name).configure(parser)
    return parser.parse_args(rest)


def served(rendered: Rendered, folder: Path, target: str = "cpu") -> ServerConfig:
    """Return a replica's configuration: from its file, the image's variables and the container's."""
    args = arguments(rendered.server, target)
    mounts = {each["mountPath"]: each["name"] for each in rendered.server["volumeMounts"]}
    volume = next(
        each for each in rendered.pod["spec"]["volumes"] if each["name"] == mounts[str(args.config.parent)]
    )
    data = rendered.one("ConfigMap", volume["configMap"]["name"])["data"]
    args.config = folder / args.config.name
    args.config.write_text(data[args.config.name], encoding="utf-8")
    variables = Dockerfile.read().environment(target)
    variables |= {each["name"]: each["value"] for each in rendered.server["env"]}
    return build_config(serve.read_settings(args, variables))
