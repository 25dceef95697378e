"""The base install: a wheel in a fresh environment, with only the client and its two packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["UV_SYSTEM_CERTS"] = "1"  # uv trusts the same hosts as pip
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, cwd=cwd, env=environment, timeout=240
    )


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executables of an environment with the wheel without extras."""
    folder = tmp_path_factory.mktemp("install")
    # Built from the source distribution, so that the stubs are compiled in its copy, not in this checkout.
    built = run(sys.executable, "-m", "build", "--installer", "uv", "--outdir", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    made = run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    assert made.returncode == 0, made.stderr
    scripts = folder / "venv" / "bin"
    installed = pip(scripts, "install", "--constraint", ROOT / "constraints.txt", wheel)
    assert installed.returncode == 0, installed.stderr
    return scripts


def pip(scripts: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run uv's pip on the environment; it takes a tenth of pip's time."""
    return run(uv.find_uv_bin(), "pip", *arguments, "--python", scripts / "python")


def test_the_base_install_is_light(scripts: Path) -> None:
    listed = pip(scripts, "list", "--format=freeze")

    names = {line.partition("==")[0] for line in listed.stdout.split()}
    assert names == {"farrank", "grpcio", "protobuf", "typing-extensions"}


def test_the_doctor_describes_the_machine_and_says_what_a_server_needs(scripts: Path) -> None:
    told = run(scripts / "farrank", "doctor")

    assert (told.returncode, told.stderr) == (0, "")
    assert "\nprocessor: " in told.stdout
    assert "\nno ranker can be served: pip install 'farrank[server]' (no module " in told.stdout


def test_the_client_works(scripts: Path, tmp_path: Path) -> None:
    script = (
        "from farrank_client import Client, Unavailable\n"
        "try:\n"
        "    Client('127.0.0.1:1').rerank('q', ['x'])\n"
        "except Unavailable as error:\n"
        "    print(type(error).__name__)\n"
    )

    assert run(scripts / "python", "-c", script, cwd=tmp_path).stdout == "Unavailable\n"


def test_the_commands_are_listed(scripts: Path, tmp_path: Path) -> None:
    helped = run(scripts / "farrank", "--help", cwd=tmp_path)

    assert helped.returncode == 0
    assert all(name in helped.stdout for name in ("serve", "index", "rerank", "search", "rankers"))


def test_reranking_needs_no_extra(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "x"}', encoding="utf-8")

    asked = run(
        *(scripts / "farrank", "rerank", "--query", "q", "--jsonl", "a.jsonl", "--server", "127.0.0.1:1"),
        cwd=tmp_path,
    )

    assert (asked.returncode, asked.stderr.count("\n")) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "extra"), [(["serve"], "server"), (["index", "--pydoc", "--out", "index"], "lucene")]
)
def test_a_missing_extra_says_how_to_install_it(
    scripts: Path, tmp_path: Path, arguments: list[str], extra: str
) -> None:
    refused = run(scripts / "farrank", *arguments, cwd=tmp_path)

    assert refused.returncode == 2
    assert f"pip install 'farrank[{extra}]'" in refused.stderr
    assert refused.stderr.count("\n") == 1
