"""Environments that hold other people's clients, apart from the project's own."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import uv

from support.documentation import ROOT

CACHE = ROOT / ".cache" / "http-clients"

# What uv says when nothing answers, as against a package that is not there or does not fit.
_UNREACHABLE = re.compile(r"error sending request|Failed to fetch|timed out|dns error|tcp connect error")


class IndexUnreachable(Exception):
    """No package index answered."""


def plain_environ() -> dict[str, str]:
    """The variables of this process without those that lead another Python to this one's packages."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def made_environment(
    requirements: Path, cache: Path = CACHE, variables: Mapping[str, str] | None = None
) -> Path:
    """Install what a file names, and nothing else; return the folder of executables.

    What was installed before from the same lines is taken as it is. `variables` are for uv, which installs in
    a tenth of the time that pip takes.
    Raises: IndexUnreachable; RuntimeError with what uv said.
    """
    lines = requirements.read_bytes()
    digest = hashlib.sha256(lines + sys.version.encode()).hexdigest()
    folder = cache / requirements.stem
    ready = folder / "installed"
    cache.mkdir(parents=True, exist_ok=True)
    # Two test runs in one checkout share it.
    with (cache / f"{requirements.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], {})
            environment = {**_as_pip_does(), "UV_CACHE_DIR": str(cache / "uv"), **(variables or {})}
            python = ["--quiet", "--python", str(folder / "bin" / "python")]
            # Nothing that a client draws in is taken unseen: torch would be gigabytes.
            flags = ["--no-deps", "--only-binary", ":all:", "--requirement", str(requirements)]
            _run([uv.find_uv_bin(), "pip", "install", *python, *flags], environment)
            _run([uv.find_uv_bin(), "pip", "check", *python], environment)
            ready.write_text(digest)
    return folder / "bin"


def _as_pip_does() -> dict[str, str]:
    """Variables with which uv asks the index that pip's variables name, and trusts whom the system trusts."""
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
