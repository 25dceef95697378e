"""Third-party clients, unmodified, call a running server: each file of `inside` in its environments."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.asked_server import PAGE, AskedServer
from support.client_environments import IndexUnreachable, made_environment, plain_environ

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
INSIDE = HERE / "inside"

FILES = {
    "current": ("cohere", "connect", "haystack", "litellm", "rerankers", "voyage"),
    "cohere-5": ("cohere", "infinity", "langchain", "llama_index"),
}

# Variables that keep these libraries from calling home.
QUIET = {
    "HAYSTACK_TELEMETRY_ENABLED": "False",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


@pytest.fixture(scope="session")
def handed_over(server: AskedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the server's facts for the tests in the environments."""
    path = tmp_path_factory.mktemp("http-clients") / "server.json"
    server.write(path)
    return path


@pytest.mark.parametrize(
    ("environment", "client"), [(name, client) for name, clients in FILES.items() for client in clients]
)
def test_clients(environment: str, client: str, scripts: Callable[[str], Path], handed_over: Path) -> None:
    folder = scripts(environment)
    path = f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**plain_environ(), **QUIET, "PATH": path, "FARRANK_ASKED": str(handed_over), "NO_PROXY": "*"}
    command = [str(folder / "python"), "-m", "pytest", "--config-file", str(INSIDE / "pytest.ini"), "--quiet"]
    # It is meant for the project's own pytest, not for the clients'.
    variables.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [*command, str(INSIDE / f"test_{client}.py")],
        capture_output=True,
        text=True,
        env=variables,
        cwd=INSIDE,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed(, \d+ warnings?)? in", done.stdout, re.MULTILINE), done.stdout


def test_every_file_is_run_and_every_heading_of_the_page_is_tried() -> None:
    files = {path.stem.removeprefix("test_"): path.read_text() for path in INSIDE.glob("test_*.py")}
    assert files.keys() == {client for clients in FILES.values() for client in clients}
    text = PAGE.read_text(encoding="utf-8").partition("\n## Clients, line by line\n")[2].partition("\n## ")[0]
    here = "".join((HERE / f"test_{name}.py").read_text() for name in ("search_engines", "javascript"))
    for heading in re.findall(r"^### (.+)$", text, re.MULTILINE):
        assert any(f'"{heading}"' in source for source in (*files.values(), here)), heading


def test_no_environment_holds_torch_or_the_project() -> None:
    for name in FILES:
        lines = (HERE / f"{name}.txt").read_text().splitlines()
        pinned = [line for line in lines if line and not line.startswith("#")]
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned)
        assert not any(line.startswith(("torch", "transformers", "nvidia", "farrank")) for line in pinned)


def test_an_unreachable_index_is_distinguished_from_an_absent_package(tmp_path: Path) -> None:
    requirements = tmp_path / "some.txt"
    requirements.write_text("idna==3.20\n")
    nowhere = {
        "UV_NO_CONFIG": "1",
        "UV_HTTP_RETRIES": "0",
        "UV_DEFAULT_INDEX": "http://127.0.0.1:1/simple",
        "UV_FIND_LINKS": "",
    }
    with pytest.raises(IndexUnreachable):
        made_environment(requirements, tmp_path, nowhere)
    with pytest.raises(RuntimeError, match=r"idna was not found"):
        made_environment(requirements, tmp_path, {**nowhere, "UV_DEFAULT_INDEX": tmp_path.as_uri()})
    assert not (tmp_path / "some" / "installed").exists()
