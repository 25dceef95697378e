"""JSON files, and dataclasses from parsed JSON, with every key and type checked."""

import enum
import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from farrank_rankers.errors import ExportError, SourceError


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


T = TypeVar("T")


def read_fields(kind: type[T], value: object, where: str) -> T:
    """Construct a dataclass from a JSON object.

    Fields may be strings, numbers, enumerations, literals, dataclasses, and tuples, mappings and optionals of
    these.
    Raises: ExportError naming the key that is missing, unknown or of another type.
    """
    if not isinstance(value, dict):
        raise ExportError(f"{where} is {value!r}; it must be an object")
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(value.keys() - known.keys())
    if unknown:
        raise ExportError(f"{where} has the unknown key {unknown[0]}; known are {', '.join(known)}")
    for name, item in known.items():
        if name not in value and item.default is MISSING and item.default_factory is MISSING:
            raise ExportError(f"{where} lacks the key {name}")
    hints = get_type_hints(kind)
    return kind(**{name: _read(hints[name], each, f"{where}: {name}") for name, each in value.items()})


def _read(hint: Any, value: object, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in arguments:
            raise ExportError(f"{where} is {value!r}; it must be one of {', '.join(map(str, arguments))}")
        return value
    if origin in (Union, types.UnionType):
        (other,) = (each for each in arguments if each is not type(None))
        return None if value is None else _read(other, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise ExportError(f"{where} is {value!r}; it must be a list")
        return tuple(_read(arguments[0], each, f"{where}[{index}]") for index, each in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise ExportError(f"{where} is {value!r}; it must be an object")
        return {key: _read(arguments[1], each, f"{where}.{key}") for key, each in value.items()}
    if is_dataclass(hint):
        return read_fields(hint, value, where)  # type: ignore[arg-type]
    return _read_plain(hint, value, where)


def _read_plain(hint: Any, value: object, where: str) -> Any:
    if issubclass(hint, enum.Enum):
        listed = [member.value for member in hint]
        if value not in listed:
            raise ExportError(f"{where} is {value!r}; it must be one of {', '.join(listed)}")
        return hint(value)
    if hint is float and type(value) in (int, float):
        return _finite(value, where)
    if type(value) is not hint:
        raise ExportError(f"{where} is {value!r}; it must be of type {hint.__name__}")
    return value


def _finite(value: Any, where: str) -> float:
    """Read a number; Python's parser lets NaN and Infinity pass, and integers without end."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ExportError(f"{where} must be a finite number")
    return number
