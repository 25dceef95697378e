"""The page's pure modules, tested with Node's own test runner, without a browser."""

import shutil
import subprocess
from pathlib import Path

import pytest

from farrank_page.routes import PAGE

# The first release whose runner takes files as they are.
MIN_NODE = 18


def test_the_model_computes_what_the_page_shows() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed (Debian: apt-get install nodejs)")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < MIN_NODE:
        pytest.skip(f"node {version.strip()} is older than {MIN_NODE}")
    tests = Path(__file__).with_name("model.test.mjs")
    ran = subprocess.run([node, "--test", str(tests)], capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_file_can_make_markup_of_a_text() -> None:
    """Elements are created one by one; the page parses no text of servers or users."""
    sources = [path for path in PAGE.rglob("*") if path.suffix in (".mjs", ".html")]
    assert len(sources) > 10
    for path in sources:
        text = path.read_text(encoding="utf-8")
        for means in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
            assert means not in text, f"{path.name} uses {means}"
