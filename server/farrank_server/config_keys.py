"""The names of the configuration's keys: which a variable means, and which was meant by a wrong one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_origin, get_type_hints

from farrank_server.config_values import optional_of
from farrank_server.errors import ConfigError

PREFIX = "FARRANK_"
_SEPARATOR = "__"


def environment_path(variable: str, top: Sequence[str]) -> tuple[str, ...] | None:
    """Turn a variable's name into a path of keys; None where the variable is not ours.

    Kubernetes puts `FARRANK_PORT` and `FARRANK_SERVICE_HOST` into every container beside a service called
    farrank, so a variable counts only where its name has two underscores or comes near one of `top`.
    """
    if not variable.startswith(PREFIX):
        return None
    name = variable.removeprefix(PREFIX).lower()
    begins_like_ours = any(name.startswith(f"{key}_") for key in top)
    if _SEPARATOR in name or begins_like_ours or get_close_matches(name, top, cutoff=0.8):
        return tuple(name.split(_SEPARATOR))
    return None


def unknown_key(
    level: Sequence[str], wrong: Sequence[str], siblings: Sequence[str], source: str, root: type
) -> ConfigError:
    """Make the error for the key `wrong` under `level`, naming the nearest key that exists."""
    key = ".".join((*level, *wrong))
    known = list(_keys(root, ()))
    one_underscore_too_few = [each for each in known if each.replace(".", "_") == key]
    misspelled = [
        ".".join((*level, each, *wrong[1:]))
        for each in get_close_matches(wrong[0], siblings, n=1, cutoff=0.6)
    ]
    elsewhere = [each for each in known if each.endswith(f".{wrong[-1]}")]
    if meant := one_underscore_too_few + misspelled + elsewhere:
        hint = f"did you mean {meant[0]}?"
    elif siblings:
        hint = f"known here: {', '.join(siblings)}"
    else:
        hint = f"{'.'.join(level)} holds one value"
    return ConfigError(f"{key}: there is no such key ({source}); {hint}")


def _keys(hint: Any, path: tuple[str, ...]) -> Iterator[str]:
    inner, _ = optional_of(hint)
    if get_origin(inner) is Mapping:
        yield from _keys(get_args(inner)[1], (*path, "NAME"))
    elif is_dataclass(inner):
        for name, below in get_type_hints(inner).items():
            yield from _keys(below, (*path, name))
    else:
        yield ".".join(path)
