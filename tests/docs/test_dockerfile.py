"""The Dockerfile without an engine: what it names exists, and each image runs the server as promised."""

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
from dataclasses import dataclass
from pathlib import Path

import pytest

from farrank_cli.commands import serve
from farrank_cli.spawn import SpawnedServer
from farrank_cli.table import COMMANDS

ROOT = Path(__file__).parents[2]
TARGETS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's base, and its instructions in order as (name, rest of the line)."""

    base: str
    instructions: tuple[tuple[str, str], ...]

    def lines(self, name: str) -> list[str]:
        return [rest for instruction, rest in self.instructions if instruction == name]


def read_stages() -> dict[str, Stage]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    stages: dict[str, Stage] = {}
    name, base = "", ""
    found: list[tuple[str, str]] = []
    for line in [*filter(None, map(str.strip, text.splitlines())), "FROM end AS end"]:
        instruction, rest = line.split(maxsplit=1)
        if instruction == "FROM":
            if name:
                stages[name] = Stage(base, tuple(found))
            base, _, name = rest.split()
            found = []
        else:
            found.append((instruction, rest))
    return stages


STAGES = read_stages()


def inherited(target: str, name: str) -> list[str]:
    """An instruction's lines in a stage and all that it is built from, oldest first."""
    stage = STAGES[target]
    return (inherited(stage.base, name) if stage.base in STAGES else []) + stage.lines(name)


def environment(target: str) -> dict[str, str]:
    words = [word for line in inherited(target, "ENV") for word in shlex.split(line)]
    return dict(word.split("=", 1) for word in words)


def test_stages_come_from_stages_before_them_or_from_a_pinned_image() -> None:
    names = list(STAGES)
    assert set(TARGETS) <= set(names)
    for place, stage in enumerate(STAGES.values()):
        assert stage.base in names[:place] or re.fullmatch(r"python:\d\.\d+-slim-\w+", stage.base)
        for rest in stage.lines("COPY") + stage.lines("RUN"):
            for source in re.findall(r"(?:--from=|,from=)([\w-]+)", rest):
                assert source in names[:place]


def test_every_source_exists_and_is_in_the_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    copied = {
        source
        for stage in STAGES.values()
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


def test_the_wheels_sources_are_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    copied = {word for rest in STAGES["wheel"].lines("COPY") for word in rest.split()[:-1]}
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert package.partition("/")[0] in copied
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= copied


def test_requirements_are_those_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (argument,) = STAGES["requirements"].lines("ARG")
    extras = shlex.split(argument)[0].removeprefix("EXTRAS=")
    # Everything but what exports rankers beforehand and what measures servers from outside.
    assert (
        f"farrank[{','.join([*extras.split(), 'export', 'loadtest'])}]"
        in project["optional-dependencies"]["all"]
    )
    (line,) = STAGES["requirements"].lines("RUN")
    written, _, _ = line.rpartition(" > ")
    output = subprocess.run(
        ["sh", "-c", written],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}", "EXTRAS": extras},
    ).stdout
    expected = [*project["dependencies"]]
    for extra in extras.split():
        expected += project["optional-dependencies"][extra]
    assert output.splitlines() == expected


def test_every_install_is_held_by_the_constraints() -> None:
    installs = [rest for stage in STAGES.values() for rest in stage.lines("RUN") if "pip install" in rest]
    assert installs
    for rest in installs:
        assert "--constraint /src/constraints.txt" in rest or "--no-deps" in rest
    pinned = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert len(pinned) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_the_user_is_not_root(target: str) -> None:
    user = inherited(target, "USER")[-1]
    assert int(user) > 0
    assert any(f'"--uid", "{user}"' in rest for rest in inherited(target, "RUN") if "useradd" in rest)
    # Whatever needs root comes before.
    names = [name for name, _ in STAGES[target].instructions]
    assert "RUN" not in names[names.index("USER") :]


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_is_one_and_its_environment_is_configuration(target: str) -> None:
    entrypoint = json.loads(inherited(target, "ENTRYPOINT")[-1])
    command = json.loads(inherited(target, "CMD")[-1])
    assert entrypoint == ["farrank"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    COMMANDS[command[0]].load().configure(parser)
    config = serve.read_config(parser.parse_args(command[1:]), environment(target))
    assert (config.listen.host, config.device.name) == ("0.0.0.0", "cuda:0" if target == "cuda" else None)
    exposed = {int(port) for rest in inherited(target, "EXPOSE") for port in rest.split()}
    assert exposed == {config.listen.port, config.listen.metrics_port}


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_downloaded_at_run_time(target: str) -> None:
    assert environment(target)["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("target", TARGETS)
def test_the_health_check_tells_a_healthy_server_from_none(target: str, server: SpawnedServer) -> None:
    _, _, check = inherited(target, "HEALTHCHECK")[-1].partition(" CMD ")
    program, *arguments = json.loads(check)
    assert program == "python"
    # A port that nobody listens at: 1 is reserved.
    for port, status in ((server.address.rpartition(":")[2], 0), ("1", 1)):
        variables = {**os.environ, "FARRANK_LISTEN__PORT": port}
        done = subprocess.run([sys.executable, *arguments], env=variables, timeout=30)
        assert done.returncode == status
