"""The wheels in fresh environments: `farrank-client` alone, and `farrank` without extras."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv
from packaging.utils import canonicalize_name

from farrank_cli.spawn import SpawnedServer, spawned_server

ROOT = Path(__file__).parents[2]
CLIENT = {"farrank-client", "grpcio", "protobuf", "typing-extensions"}

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["UV_SYSTEM_CERTS"] = "1"  # uv trusts the same hosts as pip
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, cwd=cwd, env=environment, timeout=240
    )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The two wheels, by the name of their distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    # Built from source distributions, so that the stubs are compiled in a copy, not in this checkout.
    for project in (ROOT / "clients", ROOT):
        built = run(
            sys.executable, "-m", "build", "--installer", "uv", "--outdir", folder, project, cwd=folder
        )
        assert built.returncode == 0, built.stderr
    found: dict[str, Path] = {
        canonicalize_name(path.name.partition("-")[0]): path for path in folder.glob("*.whl")
    }
    assert found.keys() == {"farrank-client", "farrank"}
    return found


def environment(folder: Path, *wheels: Path) -> Path:
    """Make an environment with some wheels and what they require; return the folder of its executables."""
    made = run(sys.executable, "-m", "venv", "--without-pip", folder)
    assert made.returncode == 0, made.stderr
    installed = pip(folder / "bin", "install", "--constraint", ROOT / "constraints.txt", *wheels)
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def scripts(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executables of an environment with `farrank` without extras."""
    return environment(tmp_path_factory.mktemp("install") / "venv", *wheels.values())


@pytest.fixture(scope="module")
def client_scripts(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executables of an environment with `farrank-client` alone."""
    return environment(tmp_path_factory.mktemp("client") / "venv", wheels["farrank-client"])


@pytest.fixture(scope="module")
def server(tiny_rankers: dict[str, Path]) -> Iterator[SpawnedServer]:
    with spawned_server([f"--ranker=tiny={tiny_rankers['maxp']}", "--log-level=warning"]) as spawned:
        yield spawned


def pip(scripts: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run uv's pip on the environment; it takes a tenth of pip's time."""
    return run(uv.find_uv_bin(), "pip", *arguments, "--python", scripts / "python")


def installed_in(scripts: Path) -> set[str]:
    return {line.partition("==")[0] for line in pip(scripts, "list", "--format=freeze").stdout.split()}


def test_every_package_is_in_one_wheel(wheels: dict[str, Path]) -> None:
    names = {name: {*zipfile.ZipFile(path).namelist()} for name, path in wheels.items()}
    packages = {
        name: {file.partition("/")[0] for file in files if ".dist-info/" not in file}
        for name, files in names.items()
    }
    assert packages["farrank-client"] == {"farrank", "farrank_client"}
    assert not packages["farrank"] & packages["farrank-client"]
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    not_shipped = {
        "farrank_demo",
        "farrank_bench",
        "farrank_experiments",
        "farrank_dashboards",
        "farrank_docs",
    }
    assert packages["farrank"] | packages["farrank-client"] == {*linted} - not_shipped
    stubs = {
        f"farrank/v1/{name}_pb2{ending}"
        for name in ("rerank", "admin")
        for ending in (".py", ".pyi", "_grpc.py")
    }
    assert stubs <= names["farrank-client"]
    typed = {
        name.partition("/")[0] for files in names.values() for name in files if name.endswith("/py.typed")
    }
    assert typed == packages["farrank"] | packages["farrank-client"]


def test_the_base_install_is_light(scripts: Path) -> None:
    assert installed_in(scripts) == {"farrank", *CLIENT}


def test_the_client_alone_calls_a_server(client_scripts: Path, server: SpawnedServer, tmp_path: Path) -> None:
    script = (
        "import pkgutil\n"
        "from farrank import Client, Document\n"
        f"with Client({server.address!r}) as client:\n"
        "    ranking = client.rerank('sea', [Document('a', 'the sea ' * 900), 'bread'])\n"
        "print(sorted(result.index for result in ranking.results))\n"
        "print(*sorted(each.name for each in pkgutil.iter_modules() if each.name.startswith('farrank')))\n"
    )

    called = run(client_scripts / "python", "-c", script, cwd=tmp_path)

    assert (called.stdout, called.stderr) == ("[0, 1]\nfarrank farrank_client\n", "")
    assert installed_in(client_scripts) == CLIENT
    assert not (client_scripts / "farrank").exists()


def test_the_doctor_describes_the_machine_and_says_what_a_server_needs(scripts: Path) -> None:
    told = run(scripts / "farrank", "doctor")

    assert (told.returncode, told.stderr) == (0, "")
    assert "\nprocessor: " in told.stdout
    assert "\nno ranker can be served: pip install 'farrank[server]' (no module " in told.stdout


def test_the_client_works(scripts: Path, tmp_path: Path) -> None:
    script = (
        "from farrank import Client, Unavailable\n"
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
