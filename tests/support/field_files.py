"""Files in the field's formats, written from Python values."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_lines(path: Path, lines: Iterable[str | Mapping[str, Any]]) -> Path:
    """Write lines: strings as they are, mappings as JSON."""
    text = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    path.write_text("".join(f"{each}\n" for each in text), encoding="utf-8")
    return path


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def folder_content(folder: Path) -> dict[str, bytes]:
    """Read every file of a folder, by its path inside."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
