"""Read the configuration from a file, the environment and flags, each overriding the one before.

Every source becomes a list of settings (a path of keys, a value, where it was said); the tree is then
built by the type hints of its dataclasses, so that a key added there can be set everywhere at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from farrank_server.config_files import read_tree
from farrank_server.config_keys import environment_path, unknown_key
from farrank_server.config_values import convert, optional_of
from farrank_server.errors import ConfigError

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
