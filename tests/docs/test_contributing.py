"""CONTRIBUTING.md names existing files, and the commit hooks run the checks of `make lint`."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
(REPO,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
HOOKS = {hook["id"]: shlex.split(hook["entry"]) for hook in REPO["hooks"]}
BIN = Path(sys.executable).parent

UNFORMATTED = "import os\nx = {  'a':1}\n"


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:\w+/)+[\w.]*)`", PAGE)

    assert len(paths) > 15
    # A wire field's files are named relative to their package.
    rooms = (ROOT, ROOT / "server" / "farrank_server")
    assert [path for path in paths if not any((room / path).exists() for room in rooms)] == []


def test_every_target_of_make_exists() -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z0-9-]+)\b", PAGE, re.MULTILINE))

    assert {"check", "lint", "test", "hooks", "format"} <= named
    assert named <= set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))


def test_every_marker_is_named() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = project.partition("markers = [")[2].partition("]")[0]
    markers = re.findall(r'^    "(\w+): ', listed, re.MULTILINE)

    assert markers
    assert all(f"`{marker}`" in PAGE for marker in markers)


def test_hooks_run_what_lint_runs() -> None:
    lines = MAKEFILE.partition("\nlint:")[2].partition("\n\n")[0].splitlines()[1:]
    linted = {tuple(shlex.split(line.strip().replace("$(BIN)/", ".venv/bin/")))[:2] for line in lines}

    def command(words: list[str]) -> tuple[str, ...]:
        return tuple(word for word in words if not word.startswith("--"))[:2]

    assert {command(list(words)) for words in linted} == {command(words) for words in HOOKS.values()}


def run_hook(hook: str, folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = HOOKS[hook]
    command = [str(BIN / Path(program).name), *arguments, *files]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The project's settings with one file that every hook refuses, in a package that imports upwards."""
    for name in ("pyproject.toml", "buf.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "proto", tmp_path / "proto", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bad.py").write_text(UNFORMATTED)
    return tmp_path


def test_the_hooks_find_what_is_wrong(checkout: Path) -> None:
    assert run_hook("lint", checkout, "bad.py").returncode == 1
    assert run_hook("format", checkout, "bad.py").returncode == 0
    assert (checkout / "bad.py").read_text() == 'import os\n\nx = {"a": 1}\n'
    assert run_hook("proto", checkout).returncode == 0
    proto = checkout / "proto" / "farrank" / "v1" / "rerank.proto"
    proto.write_text(proto.read_text().replace("string query = 1;", "string Query = 1;", 1))
    assert run_hook("proto", checkout).returncode != 0
    assert run_hook("types", checkout, "--version").stdout.startswith("mypy ")


def test_the_imports_of_this_checkout_pass_their_hook() -> None:
    done = run_hook("imports", ROOT)

    assert done.returncode == 0, done.stdout
