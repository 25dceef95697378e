"""The two distributions of a release, `farrank-client` and `farrank`, agree with each other."""

import tomllib
from pathlib import Path
from typing import Any

import yaml
from hatchling.builders.wheel import WheelBuilder

from farrank_page.documentation import BUILT

ROOT = Path(__file__).parents[2]


def project(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return read


WHOLE, CLIENT = project(ROOT), project(ROOT / "clients")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_both_have_one_version() -> None:
    assert CLIENT["version"] == WHOLE["version"] == CITATION["version"]
    assert WHOLE["dependencies"] == [f"farrank-client=={WHOLE['version']}", *CLIENT["dependencies"]]


def test_both_have_one_licence() -> None:
    assert CLIENT["license"] == WHOLE["license"] == CITATION["license"] == "Apache-2.0"
    assert (ROOT / "clients" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_both_support_the_same_pythons() -> None:
    assert CLIENT["requires-python"] == WHOLE["requires-python"] == ">=3.11"


def test_the_citation_names_the_project() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert (CITATION["title"], CITATION["type"]) == ("Farrank", "software")
    assert CITATION["authors"] == [{"name": author["name"]} for author in WHOLE["authors"]]
    assert CITATION["message"]


def test_the_wheel_takes_the_built_documentation() -> None:
    page = (BUILT / "index.html").relative_to(ROOT).as_posix()
    config = WheelBuilder(str(ROOT)).config
    assert config.path_is_artifact(page)
    assert config.get_distribution_path(page) == "farrank_page/docs/index.html"
