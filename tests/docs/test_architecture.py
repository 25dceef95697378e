"""docs/architecture.md names existing files, and its promises hold."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}")[2].partition("\n## ")[0]


def test_every_path_exists() -> None:
    paths = re.findall(r"`((?:\w+/)+[\w.]*)`", PAGE)

    assert len(paths) >= 14
    # A policy's file is named relative to its package.
    rooms = (ROOT, ROOT / "server" / "farrank_server")
    assert [path for path in paths if not any((room / path).exists() for room in rooms)] == []


def test_the_way_of_a_request_is_at_most_ten_files() -> None:
    files = re.findall(r"^\| \d+ \| `([\w/.]+)`", section("Reading it"), re.MULTILINE)

    assert 5 <= len(files) <= 10
    assert len(set(files)) == len(files)


def test_the_glossary_is_short() -> None:
    words = re.findall(r"^\| (?!word|---)([^|]+) \|", section("Glossary"), re.MULTILINE)

    assert 10 <= len(words) <= 15


def test_the_rooms_are_those_of_the_import_contract() -> None:
    drawn = set(re.findall(r"[a-z_]+", section("Rooms").partition("```text")[2].partition("```")[0]))

    rooms = {path.parent.parent.name for path in ROOT.glob("*/*/__init__.py")} - {"tests", "dashboards"}
    assert drawn == rooms
