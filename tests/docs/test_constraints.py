"""The files of constraints: their content, their differences, and that this environment matches one."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = {"5": ROOT / "constraints.txt", "4": ROOT / "constraints-transformers-4.txt"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
OWN = {canonicalize_name(name) for name in ("farrank", "farrank-client")}
HERE = importlib.metadata.version("transformers").partition(".")[0]


def pins_of(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]  # the first line describes the file
    pins = dict(line.split("==") for line in lines)
    assert len(pins) == len(lines)
    return {canonicalize_name(name): version for name, version in pins.items()}


PINS = {release: pins_of(path) for release, path in FILES.items()}


def test_they_differ_in_what_the_releases_ask_for() -> None:
    assert {release: pins["transformers"].partition(".")[0] for release, pins in PINS.items()} == {
        "5": "5",
        "4": "4",
    }
    newer, older = PINS["5"], PINS["4"]
    assert newer.keys() - older.keys() == {"shellingham", "typer"}
    assert older.keys() - newer.keys() == {"httpcore", "httpx", "optimum", "optimum-onnx"}
    differing = {name for name in newer.keys() & older.keys() if newer[name] != older[name]}
    assert differing == {"transformers", "tokenizers", "huggingface-hub", "sentence-transformers", "datasets"}


@pytest.mark.parametrize("release", PINS)
def test_the_extras_ask_for_what_they_hold(release: str) -> None:
    for extra, lines in EXTRAS.items():
        for requirement in map(Requirement, lines):
            name = canonicalize_name(requirement.name)
            if name != "farrank" and not (name == "optimum-onnx" and release == "5"):
                assert requirement.specifier.contains(PINS[release][name]), f"{extra}: {requirement}"
    assert "optimum" not in re.findall(r"\w+", EXTRAS["all"][0])


def needed(*requirements: str) -> dict[str, list[tuple[str, Requirement]]]:
    """Return every package that some packages need, by name, with the packages that need it."""
    asked: dict[str, list[tuple[str, Requirement]]] = {}
    waiting = [("the tests", Requirement(each)) for each in requirements]
    while waiting:
        asker, requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (asker, str(requirement)) in {(by, str(each)) for by, each in asked.setdefault(name, [])}:
            continue
        asked[name].append((asker, requirement))
        for line in importlib.metadata.requires(name) or []:
            each = Requirement(line)
            if each.marker is None or any(
                each.marker.evaluate({"extra": extra}) for extra in requirement.extras or {""}
            ):
                waiting.append((name, each))
    return asked


def test_this_environment_is_that_of_a_file() -> None:
    """Every needed package is installed, in the file's version and as all packages require it."""
    extras = "all,dev,optimum" if HERE == "4" else "all,dev"
    asked = needed(f"farrank[{extras}]")
    asked.pop("pip", None)  # pip-audit needs it; each environment is created with one of its own
    for name, askers in asked.items():
        version = importlib.metadata.version(name)
        assert name in OWN or version.partition("+")[0] == PINS[HERE][name], name
        for asker, requirement in askers:
            assert requirement.specifier.contains(version, prereleases=True), f"{asker}: {requirement}"


@pytest.mark.index
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not os.environ.get("FARRANK_INDEX"), reason="FARRANK_INDEX=1 asks the package indexes")
@pytest.mark.parametrize(
    ("release", "extras"), [("5", "all,dev"), ("4", "all,dev,optimum"), ("4", "optimum")]
)
def test_the_indexes_have_it_all(release: str, extras: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    projects = [str(ROOT / "clients"), f"{ROOT}[{extras}]"]
    command = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *command, "--constraint", str(FILES[release]), *projects],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    installed = [each["metadata"] for each in json.loads(report.read_text(encoding="utf-8"))["install"]]
    found = {canonicalize_name(each["name"]): each["version"].partition("+")[0] for each in installed}
    assert {found.pop(name) for name in OWN} == {importlib.metadata.version("farrank")}
    assert "transformers" in found
    assert found.items() <= PINS[release].items()


@pytest.mark.skipif(HERE == "4", reason="the Makefile installs the newer release's pins")
def test_the_makefile_installs_every_pin_that_all_builds_of_torch_need() -> None:
    """These pins need no version search and no other package, and `all` and `dev` require each of them."""
    (pattern,) = re.findall(r"^BUILD_PINS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    first = {name for name in PINS["5"] if not re.match(pattern, name)}
    asked = needed("farrank[all,dev]").keys() - {"pip", *OWN}
    assert {name for name in asked if not re.match(pattern, name)} == first
