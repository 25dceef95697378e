"""Every module that holds logic has a test file of its name, or docs/reference/tests.md names its tests."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "tests.md").read_text(encoding="utf-8")
# `make demo` and `make dashboards` are tested as a whole.
ROOMS = sorted({path.parts[-3] for path in ROOT.glob("*/*/__init__.py")} - {"tests", "demo", "dashboards"})

PACKAGES = {room: path.name for room in ROOMS for path in (ROOT / room).glob("farrank*") if path.is_dir()}

LISTED = {
    f"{room}/{PACKAGES[room]}/{module}": re.findall(r"`([^`]+)`", tests)
    for room, rows in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for modules, tests in re.findall(r"^\| (`.*?) \| (.*) \|$", rows, re.MULTILINE)
    for module in re.findall(r"`([^`]+)`", modules)
}


def holds_logic(path: Path) -> bool:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)


def product_modules() -> Iterator[tuple[str, str]]:
    """Yield each module that holds logic, with its room. `__main__.py` only starts others."""
    for room in ROOMS:
        for path in sorted((ROOT / room).glob("farrank*/**/*.py")):
            if path.name != "__main__.py" and "_pb2" not in path.name and holds_logic(path):
                yield room, path.relative_to(ROOT).as_posix()


def has_a_test_file_of_its_name(room: str, module: str) -> bool:
    path = Path(module)
    name = path.parent.name if path.stem == "__init__" else path.stem
    return any((ROOT / "tests" / room).glob(f"**/test_{name}.py"))


MODULES = {module: has_a_test_file_of_its_name(room, module) for room, module in product_modules()}


def test_every_module_has_a_test_file_or_a_line() -> None:
    assert len(MODULES) > 300
    assert [module for module, mirrored in MODULES.items() if not mirrored and module not in LISTED] == []


def test_every_line_is_needed() -> None:
    assert [module for module in LISTED if MODULES.get(module, True)] == []


def test_every_named_file_exists() -> None:
    for module, tests in LISTED.items():
        assert tests, module
        assert [each for each in tests if not (ROOT / each).is_file()] == [], module
