"""Text and JSON files, with errors that name them."""

import json
from pathlib import Path
from typing import Any

from farrank_rankers.errors import SourceError


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises: SourceError naming the file.
    """
    value = _parse(path)
    if not isinstance(value, dict):
        raise SourceError(f"{path} must hold a JSON object")
    return value


def read_json_list(path: Path) -> list[dict[str, Any]]:
    """Read a file that holds a list of JSON objects.

    Raises: SourceError naming the file.
    """
    value = _parse(path)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SourceError(f"{path} must hold a list of JSON objects")
    return value


def _parse(path: Path) -> object:
    try:
        parsed: object = json.loads(read_text(path))
    except ValueError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} is not JSON: {error}") from error
    return parsed


def read_text(path: Path) -> str:
    """Read a text file.

    Raises: SourceError naming the file.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
