"""Private names of Ray that Farrank needs: the installed release has each, and decision 0042 lists them."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="needs the ray extra: pip install 'farrank[ray]'")

ROOT = Path(__file__).parents[2]
DECISION = ROOT / "docs" / "decisions" / "0042-ray-serve-as-the-cluster.md"

METHODS = ("ServeControllerClient.get_serve_details", "ServeControllerClient.wait_for_proxies_serving")
OPTION = "Deployment.options(version=)"


def listed() -> set[str]:
    """Return the names that the decision lists, as in the code."""
    _, _, rest = DECISION.read_text(encoding="utf-8").partition("## Private names of Ray\n")
    section, _, _ = rest.partition("\n## ")
    return set(re.findall(r"^- `([\w.()=]+)`", section, re.MULTILINE))


def imported() -> Iterator[str]:
    """Return Ray's private names that Farrank's code imports."""
    for file in (ROOT / "scale").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ray":
                for each in node.names:
                    name = f"{node.module}.{each.name}"
                    if re.search(r"\._", name):
                        yield name


def check_there(there: bool, name: str) -> None:
    assert there, f"Ray {ray.__version__} has no {name} any more; Farrank needs it, see decision 0042"


def test_the_decision_lists_what_is_used() -> None:
    assert listed() == {*imported(), *METHODS, OPTION}


def test_the_release_installed_has_each() -> None:
    from ray.serve import Deployment
    from ray.serve._private.client import ServeControllerClient

    for name in imported():
        module, _, attribute = name.rpartition(".")
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError:
            found = None
        check_there(hasattr(found, attribute), name)
    for name in METHODS:
        check_there(hasattr(ServeControllerClient, name.rpartition(".")[2]), name)
    parameters = inspect.signature(Deployment.options).parameters
    check_there({"version", "_internal"} <= parameters.keys(), OPTION)
