"""One value of the configuration: from what a file or a string brings to the type that its hint asks for."""

import math
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from farrank_server.errors import ConfigError

_TRUTH = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_NONE = ("none", "null")


def optional_of(hint: Any) -> tuple[Any, bool]:
    """Split `X | None` into X and True; any other hint stays, with False."""
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        if len(kinds) == 1:
            return kinds[0], True
    return hint, False


def convert(hint: Any, value: object, key: str, source: str) -> Any:
    """Turn a value into its hint's type: a file brings numbers as such, variables and flags bring strings.

    Raises: ConfigError naming the key, the value, what it must be and the source.
    """
    inner, may_be_none = optional_of(hint)
    if may_be_none and (value is None or (isinstance(value, str) and value.lower() in _NONE)):
        return None
    if get_origin(inner) is Literal:
        return _one_of(get_args(inner), value, key, source)
    kind, words = _KINDS[inner]
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise _wrong(value, key, source, f"{words} or none" if may_be_none else words) from None


def _one_of(allowed: tuple[Any, ...], value: object, key: str, source: str) -> Any:
    if value in allowed:
        return value
    raise _wrong(value, key, source, " or ".join(map(str, allowed)))


def _wrong(value: object, key: str, source: str, allowed: str) -> ConfigError:
    return ConfigError(f"{key}: {value!r} is not allowed; it must be {allowed} ({source})")


def _bool(value: object) -> bool:
    if isinstance(value, str) and value.lower() in _TRUTH:
        return _TRUTH[value.lower()]
    if isinstance(value, bool):
        return value
    raise ValueError


def _int(value: object) -> int:
    # To Python a bool is an int; to someone who wrote `port: yes` it is not.
    if isinstance(value, str | int) and not isinstance(value, bool):
        return int(value)
    raise TypeError


def _float(value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number):
            return number
    raise TypeError


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError


def _path(value: object) -> Path:
    if isinstance(value, str) and value:
        return Path(value).expanduser()
    raise ValueError


_KINDS: dict[Any, tuple[Callable[[object], Any], str]] = {
    bool: (_bool, "true or false"),
    int: (_int, "a whole number"),
    float: (_float, "a number"),
    str: (_text, "text (quote it)"),
    Path: (_path, "a path"),
}
