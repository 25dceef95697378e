"""JSON files with limits of size and depth, and dataclasses from them with checks of every key and type."""

import enum
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from farrank_rankers.errors import SourceError

# Limits of a JSON file of a model or an index. Those of published models have less than 1 MB and 10 levels,
# indexes of weights' shards 2 MB; tokenizers have their own limit of bytes.
MAX_BYTES = 16 * 2**20
MAX_DEPTH = 100


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises: SourceError naming the file.
    """
    value = parse_json(path)
    if not isinstance(value, dict):
        raise SourceError(f"{path} must hold a JSON object")
    return value


def parse_json(path: Path) -> Any:
    """Read a file that holds JSON of any kind.

    Raises: SourceError naming the file.
    """
    text = read_text(path)
    try:
        return loads(text)
    except ValueError as error:
        raise SourceError(f"{path} is not JSON: {error}") from error


def loads(text: str | bytes) -> Any:
    """Parse JSON of at most `MAX_DEPTH` levels. Raises: ValueError naming the problem."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if is_deeper(value):
        raise ValueError(TOO_DEEP)
    return value


TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"


def is_deeper(value: object, most: int = MAX_DEPTH) -> bool:
    """Whether lists and objects nest deeper than this number of levels."""
    level = [value]
    for _ in range(most):
        level = [
            each
            for node in level
            if isinstance(node, (dict, list))
            for each in (node.values() if isinstance(node, dict) else node)
            if isinstance(each, (dict, list))
        ]
        if not level:
            return False
    return True


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Read a text file.

    Raises: SourceError naming the file, also if it has more than `max_bytes`.
    """
    try:
        return bounded_text(path, max_bytes)
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error


def bounded_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Read a text file of limited size.

    Raises: OSError; ValueError if it has more, or is not UTF-8.
    """
    with path.open(encoding="utf-8") as file:
        # The limit is for reading: a device has no size, and a file may grow.
        size = path.stat().st_size
        text = file.read(max_bytes + 1) if size <= max_bytes else ""
    if max(size, len(text)) > max_bytes:
        raise ValueError(f"it has more than {max_bytes} bytes, the limit for such a file")
    return text


T = TypeVar("T")

# Characters of a value in a message: a file may have megabytes in place of a name.
_SHORT = 200


def short(value: object) -> str:
    """Write a value for a one-line message."""
    text = repr(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


def read_fields(
    kind: type[T],
    value: object,
    name: str,
    error: type[Exception],
    kinds: Mapping[str, type] | None = None,
    prefix: str = "",
) -> T:
    """Construct a dataclass from a JSON object, called `name` in messages, its fields `prefix` + their names.

    Fields may be strings, numbers, enumerations, literals, dataclasses, and tuples, mappings and optionals of
    these; `kinds` gives fields more exact types than their annotations.
    Raises: `error` naming the key that is missing, unknown or of another type, and what it must be.
    """
    if not isinstance(value, dict):
        raise error(f"{name} is {short(value)}; it must be an object")
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(value.keys() - known.keys())
    if unknown:
        raise error(
            f"{name} has the unknown key {', '.join(unknown)}; known are {', '.join(known) or 'none'}"
        )
    required = [key for key, item in known.items() if item.default is item.default_factory is MISSING]
    missing = sorted(set(required) - value.keys())
    if missing:
        raise error(f"{name} lacks the key {', '.join(missing)}")
    hints = {**get_type_hints(kind), **(kinds or {})}
    return kind(**{key: read_value(hints[key], each, prefix + key, error) for key, each in value.items()})


def read_value(hint: Any, value: Any, name: str, error: type[Exception]) -> Any:
    """Read a value of an annotated type from JSON. Raises: `error` naming the value and what it must be."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (other,) = (each for each in arguments if each is not type(None))
        return None if value is None else read_value(other, value, name, error)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise error(f"{name} is {short(value)}; it must be a list")
        return tuple(
            read_value(arguments[0], each, f"{name}[{index}]", error) for index, each in enumerate(value)
        )
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise error(f"{name} is {short(value)}; it must be an object")
        return {key: read_value(arguments[1], each, f"{name}.{key}", error) for key, each in value.items()}
    if is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        return read_fields(hint, value, name, error, prefix=f"{name}.")  # type: ignore[arg-type]
    if origin is Literal or issubclass(hint, enum.Enum):
        listed = arguments or [member.value for member in hint]
        if value not in listed:
            raise error(f"{name} is {short(value)}; it must be one of {', '.join(map(str, listed))}")
        return value if origin is Literal else hint(value)
    if hint is float and type(value) in (int, float):
        # Python's parser accepts NaN, Infinity and integers of any size.
        if abs(value) <= sys.float_info.max:
            return float(value)
        raise error(f"{name} must be a finite number")
    if type(value) is not hint:
        raise error(f"{name} is {short(value)}; it must be {_CALLED.get(hint, hint.__name__)}")
    return value


_CALLED = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
