"""Environments with third-party clients, separate from the project's own."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import uv

from support.documentation import ROOT

CACHE = ROOT / ".cache" / "http-clients"

# uv's and npm's messages if no index answers, as opposed to a package that does not exist or does not fit.
_UNREACHABLE = re.compile(
    r"error sending request|Failed to fetch|timed out|dns error|tcp connect error"
    r"|ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN"
)


class IndexUnreachable(Exception):
    """No package index answered."""


def plain_environ() -> dict[str, str]:
    """Return this process's variables, without those that make another Python use this one's packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def made_environment(
    requirements: Path, cache: Path = CACHE, variables: Mapping[str, str] | None = None
) -> Path:
    """Install exactly the packages of a file. Returns the folder of executables.

    An environment that was installed from the same lines is reused. `variables` are for uv, which installs in
    a tenth of pip's time. Raises: IndexUnreachable; RuntimeError with uv's message.
    """

    def install(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], {})
        environment = {**_as_pip_does(), "UV_CACHE_DIR": str(cache / "uv"), **(variables or {})}
        python = ["--quiet", "--python", str(folder / "bin" / "python")]
        # Dependencies are never installed unseen: torch would be gigabytes.
        flags = ["--no-deps", "--only-binary", ":all:", "--requirement", str(requirements)]
        _run([uv.find_uv_bin(), "pip", "install", *python, *flags], environment)
        _run([uv.find_uv_bin(), "pip", "check", *python], environment)

    described = requirements.read_bytes() + sys.version.encode()
    return _installed_once(cache / requirements.stem, described, install) / "bin"


def _as_pip_does() -> dict[str, str]:
    """Return variables that make uv use the index of pip's variables, and trust the system's certificates."""
    index = {"UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"]} if "PIP_INDEX_URL" in os.environ else {}
    return {**plain_environ(), "UV_SYSTEM_CERTS": "1", **index}


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, env=dict(environment) or None, timeout=280, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        if _UNREACHABLE.search(said):
            raise IndexUnreachable(said.splitlines()[0])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")


def made_modules(described: Path, cache: Path = CACHE) -> Path:
    """Install npm packages. Returns the folder that holds `node_modules`.

    `described` holds `package.json` and `package-lock.json`. Packages run no scripts when they are installed.
    Raises: IndexUnreachable; RuntimeError with npm's message.
    """
    files = [described / name for name in ("package.json", "package-lock.json")]

    def install(folder: Path) -> None:
        folder.mkdir()
        for path in files:
            shutil.copy(path, folder)
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0"]
        _run(["npm", "ci", "--prefix", str(folder), *flags], plain_environ())

    return _installed_once(cache / described.name, b"".join(path.read_bytes() for path in files), install)


def _installed_once(folder: Path, described: bytes, install: Callable[[Path], None]) -> Path:
    """Fill a folder anew unless it was installed from the same description. Returns the folder."""
    digest = hashlib.sha256(described).hexdigest()
    ready = folder / "installed"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Two test runs in one checkout share the folder.
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            install(folder)
            ready.write_text(digest)
    return folder
