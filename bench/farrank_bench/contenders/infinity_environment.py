"""Infinity in a virtual environment of its own: found, or made by pip."""

import os
import subprocess
import sys
from pathlib import Path

from farrank_bench.contenders.rounds import ContenderFailed

VERSION = "0.0.78"
CONSTRAINTS = Path(__file__).parents[2] / "infinity-constraints.txt"
NAMED_BY = "FARRANK_INFINITY"
INSTALL_TIMEOUT_S = 1200.0

# What its speed depends on.
_PACKAGES = ("infinity_emb", "torch", "transformers", "sentence-transformers", "tokenizers")


def infinity_command(cache: Path) -> Path:
    """Give the program: the one that FARRANK_INFINITY names, or that of an environment below `cache`.

    Raises: ContenderFailed if there is none and it cannot be installed.
    """
    named = os.environ.get(NAMED_BY)
    if named:
        return Path(named).absolute()
    folder = (cache / f"infinity-{VERSION}").absolute()
    ready, command = folder / ".ready", folder / "bin" / "infinity_emb"
    if not ready.exists():
        print(f"  installing Infinity {VERSION} into {folder}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        install = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        install += ["--constraint", str(CONSTRAINTS), f"infinity-emb[torch,server]=={VERSION}"]
        _run(install)
        ready.touch()
    return command


def infinity_versions(command: Path) -> str:
    """List the versions that its speed depends on.

    Raises: ContenderFailed if its environment does not run.
    """
    source = f"from importlib.metadata import version as v; print(*map(v, {_PACKAGES!r}))"
    found = _run([str(command.parent / "python"), "-c", source]).split()
    return ", ".join(f"{name} {version}" for name, version in zip(_PACKAGES, found, strict=True))


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()] or [str(error)]
        raise ContenderFailed(f"{Path(command[0]).name} failed: {said[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ContenderFailed(str(error)) from error
    return done.stdout
