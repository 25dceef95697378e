"""docs/reference/public-names.md lists existing names, and the documentation's examples use no others."""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import farrank
from support.documentation import blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "public-names.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "clients" / "README.md", *(ROOT / "docs").rglob("*.md")]
LISTED = {
    module: re.findall(r"`(\w+)`", names)
    for module, names in re.findall(
        r"^\| (?:\| )?`(farrank_\w+(?:\.\w+)*)` \| \[?(`[^|]*?`)(?:\]| \|)", PAGE, re.MULTILINE
    )
}


def test_every_listed_name_exists() -> None:
    assert len(LISTED) > 20
    for module, names in LISTED.items():
        found = importlib.import_module(module)
        assert names
        assert [name for name in names if not hasattr(found, name)] == [], module


def imported(code: str) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import of Farrank in a block of Python."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("farrank"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("farrank"):
            yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_use_public_names(page: Path) -> None:
    public = {("farrank", name) for name in (*farrank.__all__, "Reranker")}
    public |= {(module, name) for module, names in LISTED.items() for name in names}
    code = [block.text for block in blocks(page.read_text(encoding="utf-8")) if block.language == "python"]
    used = {each for block in code for each in imported(block)}
    assert {(module, name) for module, name in used if not module.startswith("farrank.v1")} <= public


def test_all_other_packages_are_named_internal() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    internal = re.findall(r"`(\w+)`", PAGE.partition("\n## Internal packages\n")[2])
    assert internal == sorted(Path(package).name for package in packages)
