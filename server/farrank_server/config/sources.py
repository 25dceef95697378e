"""Read the configuration from a file, the environment and flags; later ones override earlier ones.

Every source becomes a list of settings (a path of keys, a value, where it came from). The tree is then
built by the type hints of its dataclasses, so a key that is added there can be set everywhere at once.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from farrank_server.config.values import convert, optional_of
from farrank_server.errors import ConfigError


def read_tree(path: Path) -> object:
    """Read a file by its ending: .toml, .yaml or .yml.

    Raises: ConfigError, one line, if the file cannot be read or parsed or ends otherwise.
    """
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{path}: a configuration file must end in .yaml, .yml or .toml")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    return _toml(path, text) if path.suffix == ".toml" else _yaml(path, text)


def _toml(path: Path, text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _yaml(path: Path, text: str) -> object:
    # Imported here: whoever writes TOML needs no YAML.
    import yaml

    try:
        # An empty file says nothing, which is allowed.
        return yaml.safe_load(text) or {}
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(f"{path}: {line}{error.problem or 'not YAML'}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


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


Tree = TypeVar("Tree")

# Stands for every name of a mapping, in a flag that speaks of all of them.
EVERY = "*"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and where it was said: `path` is what is left to walk, `source` names a file or flag."""

    path: tuple[str, ...]
    value: object
    source: str

    def under(self) -> "Setting":
        """The same setting as seen from one level further down."""
        return Setting(self.path[1:], self.value, self.source)


def from_file(path: Path) -> list[Setting]:
    """Read a YAML or TOML file, known by its name's ending.

    Raises: ConfigError if it cannot be read or parsed.
    """
    return list(_flatten(read_tree(path), (), str(path)))


def from_environment(tree: type[Any], variables: Mapping[str, str]) -> list[Setting]:
    """Read `FARRANK_LISTEN__PORT=0`: two underscores separate levels, names of a mapping are lower case."""
    top = [each.name for each in fields(tree)]
    paths = ((name, environment_path(name, top)) for name in sorted(variables))
    return [Setting(path, variables[name], name) for name, path in paths if path is not None]


def build(tree: type[Tree], settings: Iterable[Setting]) -> Tree:
    """Make the tree out of its defaults and the settings, later ones winning.

    Raises: ConfigError naming the key, what is wrong with it and where it was said.
    """
    built: Tree = _build_dataclass(tree, list(settings), (), MISSING, tree)
    return built


def _flatten(node: object, path: tuple[str, ...], source: str) -> Iterable[Setting]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            if not isinstance(key, str):
                raise ConfigError(f"{'.'.join((*path, str(key)))}: a key must be text; quote it ({source})")
            yield from _flatten(value, (*path, key), source)
    else:
        yield Setting(path, node, source)


def _build(hint: Any, settings: list[Setting], path: tuple[str, ...], default: Any, root: type) -> Any:
    inner, may_be_none = optional_of(hint)
    if get_origin(inner) is Mapping:
        return _build_mapping(get_args(inner)[1], settings, path, default, root)
    if not is_dataclass(inner):
        deeper = next((each for each in settings if each.path), None)
        if deeper is not None:
            raise unknown_key(path, deeper.path, (), deeper.source, root)
        return convert(hint, settings[-1].value, ".".join(path), settings[-1].source)
    last_none = max((at for at, each in enumerate(settings) if _says_none(each)), default=-1)
    if may_be_none and last_none == len(settings) - 1:
        return None
    start = default if last_none < 0 else None
    return _build_dataclass(inner, settings[last_none + 1 :], path, MISSING if start is None else start, root)


def _says_none(setting: Setting) -> bool:
    return not setting.path and setting.value in (None, "none", "null")


def _build_mapping(
    hint: Any, settings: list[Setting], path: tuple[str, ...], default: Any, root: type
) -> dict[str, Any]:
    _refuse_scalars(settings, path)
    known = {} if default is MISSING else default
    # Naming an entry replaces the entries that stand by default; speaking of every entry keeps them.
    names = list(dict.fromkeys(each.path[0] for each in settings if each.path and each.path[0] != EVERY))
    if not names and any(each.path for each in settings):
        names = list(known)
    return {
        name: _build(
            hint,
            [each.under() for each in settings if each.path and each.path[0] in (name, EVERY)],
            (*path, name),
            known.get(name, MISSING),
            root,
        )
        for name in names
    }


def _build_dataclass(
    kind: Any, settings: list[Setting], path: tuple[str, ...], default: Any, root: type
) -> Any:
    _refuse_scalars(settings, path)
    hints = get_type_hints(kind)
    below: dict[str, list[Setting]] = {}
    for each in settings:
        if each.path and each.path[0] not in hints:
            raise unknown_key(path, each.path, list(hints), each.source, root)
        if each.path:
            below.setdefault(each.path[0], []).append(each.under())
    values: dict[str, Any] = {}
    for each_field in fields(kind):
        name, given = each_field.name, below.get(each_field.name)
        standing = getattr(default, name) if default is not MISSING else _default(each_field)
        if given is None and standing is MISSING:
            source = f" ({settings[0].source})" if settings else ""
            raise ConfigError(f"{'.'.join((*path, name))}: a value is needed{source}")
        values[name] = (
            standing if given is None else _build(hints[name], given, (*path, name), standing, root)
        )
    try:
        return kind(**values)
    except ConfigError as error:
        raise _placed(error, path, below) from None


def _refuse_scalars(settings: list[Setting], path: tuple[str, ...]) -> None:
    for each in settings:
        if not each.path and not (isinstance(each.value, Mapping) and not each.value):
            key = ".".join(path) or "the configuration"
            raise ConfigError(f"{key}: {each.value!r} is no value for it, it holds keys ({each.source})")


def _default(each_field: Any) -> Any:
    if each_field.default_factory is not MISSING:
        return each_field.default_factory()
    return each_field.default


def _placed(error: ConfigError, path: tuple[str, ...], below: Mapping[str, list[Setting]]) -> ConfigError:
    """Say the whole key and the source; a dataclass' own check begins `section.field: ` and knows neither."""
    key, _, problem = str(error).partition(": ")
    name = key.rpartition(".")[2]
    source = f" ({below[name][-1].source})" if name in below else ""
    return ConfigError(f"{'.'.join((*path, name))}: {problem}{source}")
