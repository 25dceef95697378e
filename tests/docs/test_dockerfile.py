"""The Dockerfile without an engine: its names exist, and each image runs the server as promised."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from farrank_cli.commands import serve
from farrank_cli.main import load
from farrank_cli.spawn import SpawnedServer
from farrank_server.config.server_config import build_config

if TYPE_CHECKING:
    from support.documentation import Dockerfile

ROOT = Path(__file__).parents[2]
TARGETS = ("cpu", "cuda", "tensorrt")


def test_stages_come_from_stages_before_them_or_from_a_pinned_image(dockerfile: Dockerfile) -> None:
    stages = dockerfile.stages
    names = list(stages)
    assert set(TARGETS) <= set(names)
    for place, stage in enumerate(stages.values()):
        assert stage.base in names[:place] or re.fullmatch(r"python:\d\.\d+-slim-\w+", stage.base)
        for rest in stage.lines("COPY") + stage.lines("RUN"):
            for source in re.findall(r"(?:--from=|,from=)([\w-]+)", rest):
                assert source in names[:place]


def test_every_source_exists_and_is_in_the_context(dockerfile: Dockerfile) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    copied = {
        source
        for stage in dockerfile.stages.values()
        for rest in stage.lines("COPY")
        if not rest.startswith("--from=")
        for source in rest.split()[:-1]
    }
    assert copied == set(kept)
    for source in copied:
        assert (ROOT / source).exists()
        assert not any(
            fnmatch.fnmatch(source, line)
            for line in ignored
            if line != "*" and not line.startswith(("!", "#"))
        )


def test_the_wheels_sources_are_copied(dockerfile: Dockerfile) -> None:
    copied = {word for rest in dockerfile.stages["wheels"].lines("COPY") for word in rest.split()[:-1]}
    (built,) = map(json.loads, dockerfile.stages["wheels"].lines("RUN"))
    assert built[-2:] == ["./clients", "."]
    assert "proto" in copied  # a part of the client's wheel
    for folder in built[-2:]:
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        named = [*packages, project["project"]["readme"], *project["project"]["license-files"]]
        assert {(Path(folder) / each).parts[0] for each in named} <= copied


@pytest.mark.parametrize("more", [[], ["ray"], ["ray", "otel"]])
def test_requirements_are_those_of_the_extras(more: list[str], dockerfile: Dockerfile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = (
        shlex.split(argument)[0].removeprefix("EXTRAS=").split()
        for argument in dockerfile.stages["requirements"].lines("ARG")
        if argument.startswith("EXTRAS=")
    )
    # All extras except those for exporting and training in advance, load tests, agents, research, and Ray.
    apart = ("export", "loadtest", "train", "lora", "mcp", "pyterrier", "mteb", "ir-datasets", "otel", "ray")
    assert f"farrank[{','.join([*extras, *apart])}]" in project["optional-dependencies"]["all"]
    expected = [*project["dependencies"]]
    for extra in [*extras, *more]:
        expected += project["optional-dependencies"][extra]
    # The project's own wheels are built from the checkout.
    own = {each for each in expected if Requirement(each).name in ("farrank", "farrank-client")}
    assert {extra for each in own for extra in Requirement(each).extras} <= {*extras}
    found = dockerfile.requirements(MORE_EXTRAS=" ".join(more)).splitlines()
    assert found == [each for each in expected if each not in own]


def test_nodes_of_a_ray_cluster_have_its_commands(dockerfile: Dockerfile) -> None:
    # KubeRay starts a node with a shell's `ray start`, whatever the entrypoint is.
    (ray,) = (
        each
        for each in map(Requirement, dockerfile.requirements(MORE_EXTRAS="ray").splitlines())
        if each.name == "ray"
    )
    assert "serve" in ray.extras
    assert dockerfile.environment("cpu")["PATH"].startswith("/opt/farrank/bin:")


@pytest.mark.parametrize("target", TARGETS)
def test_the_user_is_not_root(target: str, dockerfile: Dockerfile) -> None:
    user = dockerfile.inherited(target, "USER")[-1]
    assert int(user) > 0
    assert any(
        f'"--uid", "{user}"' in rest for rest in dockerfile.inherited(target, "RUN") if "useradd" in rest
    )
    # Instructions that need root come before USER.
    names = [name for name, _ in dockerfile.stages[target].instructions]
    assert "RUN" not in names[names.index("USER") :]


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_is_one_and_its_environment_is_configuration(target: str, dockerfile: Dockerfile) -> None:
    entrypoint = json.loads(dockerfile.inherited(target, "ENTRYPOINT")[-1])
    command = json.loads(dockerfile.inherited(target, "CMD")[-1])
    assert entrypoint == ["farrank"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    load(command[0]).configure(parser)
    settings = serve.read_settings(parser.parse_args(command[1:]), dockerfile.environment(target))
    config = build_config(settings)
    assert (config.listen.host, config.device.name) == ("0.0.0.0", None if target == "cpu" else "cuda:0")
    exposed = {int(port) for rest in dockerfile.inherited(target, "EXPOSE") for port in rest.split()}
    assert exposed == {config.listen.port, config.listen.metrics_port, config.listen.http.port}


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_downloaded_at_run_time(target: str, dockerfile: Dockerfile) -> None:
    assert dockerfile.environment(target)["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("target", TARGETS)
def test_the_health_check_tells_a_healthy_server_from_none(
    target: str, dockerfile: Dockerfile, server: SpawnedServer
) -> None:
    _, _, check = dockerfile.inherited(target, "HEALTHCHECK")[-1].partition(" CMD ")
    program, *arguments = json.loads(check)
    assert program == "python"
    # The second port is one without a listener: 1 is reserved.
    for port, status in ((server.address.rpartition(":")[2], 0), ("1", 1)):
        variables = {**os.environ, "FARRANK_LISTEN__PORT": port}
        done = subprocess.run([sys.executable, *arguments], env=variables, timeout=280)
        assert done.returncode == status
