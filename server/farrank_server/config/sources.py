"""Read the configuration from a file, the environment and flags; later ones override earlier ones.

Every source becomes a list of settings (a path of keys, a value, where it came from). The tree is then
built by the type hints of its dataclasses, so a key that is added there can be set everywhere at once.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from farrank_server.config.values import convert, optional_of
from farrank_server.errors import ConfigError

Tree = TypeVar("Tree")

# Stands for every name of a mapping, in a flag that sets all of them.
EVERY = "*"

PREFIX = "FARRANK_"
_SEPARATOR = "__"

# What could not be built: its problems are noted, and its parent goes on without it.
_BROKEN: Any = object()


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and where it came from: `path` is what is left to walk, `source` names a file or flag."""

    path: tuple[str, ...]
    value: object
    source: str

    def under(self) -> "Setting":
        """The same setting as seen from one level further down."""
        return Setting(self.path[1:], self.value, self.source)


def from_file(path: Path) -> list[Setting]:
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
    tree = _toml(path, text) if path.suffix == ".toml" else _yaml(path, text)
    return list(_flatten(tree, (), str(path)))


def _toml(path: Path, text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def _yaml(path: Path, text: str) -> object:
    # Imported here: who writes TOML needs no YAML.
    import yaml

    try:
        # An empty file sets nothing, which is allowed.
        return yaml.safe_load(text) or {}
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ConfigError(f"{path}: {line}{error.problem or 'not YAML'}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


def _flatten(node: object, path: tuple[str, ...], source: str) -> Iterator[Setting]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            if not isinstance(key, str):
                raise ConfigError(f"{'.'.join((*path, str(key)))}: a key must be text; quote it ({source})")
            yield from _flatten(value, (*path, key), source)
    else:
        yield Setting(path, node, source)


def from_environment(tree: type[Any], variables: Mapping[str, str]) -> list[Setting]:
    """Read `FARRANK_LISTEN__PORT=0`: two underscores separate levels, names of a mapping are lower case."""
    top = [each.name for each in fields(tree)]
    return [
        Setting(tuple(key.split(_SEPARATOR)), variables[name], name)
        for name in sorted(variables)
        if name.startswith(PREFIX) and _is_ours(key := name.removeprefix(PREFIX).lower(), top)
    ]


def _is_ours(key: str, top: Sequence[str]) -> bool:
    # Kubernetes puts FARRANK_PORT and FARRANK_SERVICE_HOST into every container beside a service called
    # farrank, so a variable counts only where its name has two underscores or comes near a key of ours.
    begins_like_ours = any(key.startswith(f"{each}_") for each in top)
    return _SEPARATOR in key or begins_like_ours or bool(get_close_matches(key, top, cutoff=0.8))


def build(tree: type[Tree], settings: Iterable[Setting]) -> Tree:
    """Make the tree out of its defaults and the settings, later ones winning.

    Raises: ConfigError with every problem there is: the key, what is wrong with it and where it came from.
    """
    builder = _Builder(tree)
    built: Tree = builder.branch(tree, list(settings), (), MISSING)
    if builder.problems:
        raise ConfigError(*dict.fromkeys(builder.problems))
    return built


class _Builder:
    """Builds one tree, and goes on after a problem, so that all of them are found at once."""

    def __init__(self, root: type[Any]) -> None:
        self._root = root
        self.problems: list[str] = []

    def branch(self, kind: Any, settings: list[Setting], path: tuple[str, ...], standing: Any) -> Any:
        """Build a dataclass; `standing` is what it is where nothing is set."""
        self._refuse_scalars(settings, path)
        hints = get_type_hints(kind)
        below: dict[str, list[Setting]] = {}
        for each in settings:
            if each.path and each.path[0] not in hints:
                self.problems.append(_unknown_key(path, each, list(hints), self._root))
            elif each.path:
                below.setdefault(each.path[0], []).append(each.under())
        values: dict[str, Any] = {}
        for each_field in fields(kind):
            name = each_field.name
            default = _default(each_field) if standing is MISSING else getattr(standing, name)
            if name in below:
                values[name] = self._value(hints[name], below[name], (*path, name), default)
            elif default is MISSING:
                source = f" ({settings[0].source})" if settings else ""
                self.problems.append(f"{'.'.join((*path, name))}: a value is needed{source}")
                values[name] = _BROKEN
            else:
                values[name] = default
        if _BROKEN in values.values():
            return _BROKEN
        try:
            return kind(**values)
        except ConfigError as error:
            self.problems += [_placed(problem, path, below) for problem in error.problems]
            return _BROKEN

    def _value(self, hint: Any, settings: list[Setting], path: tuple[str, ...], standing: Any) -> Any:
        inner, may_be_none = optional_of(hint)
        if get_origin(inner) is Mapping:
            built = self._mapping(get_args(inner)[1], settings, path, standing)
        elif is_dataclass(inner):
            last_none = max((at for at, each in enumerate(settings) if _sets_none(each)), default=-1)
            if may_be_none and last_none == len(settings) - 1:
                return None
            start = MISSING if standing is None or last_none >= 0 else standing
            built = self.branch(inner, settings[last_none + 1 :], path, start)
        else:
            built = self._leaf(hint, settings, path)
        return standing if built is _BROKEN and standing is not MISSING else built

    def _leaf(self, hint: Any, settings: list[Setting], path: tuple[str, ...]) -> Any:
        deeper = next((each for each in settings if each.path), None)
        if deeper is not None:
            self.problems.append(_unknown_key(path, deeper, (), self._root))
            return _BROKEN
        try:
            return convert(hint, settings[-1].value, ".".join(path), settings[-1].source)
        except ConfigError as error:
            self.problems += error.problems
            return _BROKEN

    def _mapping(self, hint: Any, settings: list[Setting], path: tuple[str, ...], standing: Any) -> Any:
        self._refuse_scalars(settings, path)
        known = {} if standing is MISSING else standing
        # Naming an entry replaces the entries that stand by default; setting every entry keeps them.
        names = list(dict.fromkeys(each.path[0] for each in settings if each.path and each.path[0] != EVERY))
        if not names and any(each.path for each in settings):
            names = list(known)
        built = {}
        for name in names:
            mine = [each.under() for each in settings if each.path and each.path[0] in (name, EVERY)]
            built[name] = self._value(hint, mine, (*path, name), known.get(name, MISSING))
        return _BROKEN if _BROKEN in built.values() else built

    def _refuse_scalars(self, settings: list[Setting], path: tuple[str, ...]) -> None:
        for each in settings:
            if not each.path and not (isinstance(each.value, Mapping) and not each.value):
                key = ".".join(path) or "the configuration"
                self.problems.append(f"{key}: {each.value!r} is not allowed; it holds keys ({each.source})")


def _sets_none(setting: Setting) -> bool:
    return not setting.path and setting.value in (None, "none", "null")


def _default(each_field: Any) -> Any:
    if each_field.default_factory is not MISSING:
        return each_field.default_factory()
    return each_field.default


def _placed(problem: str, path: tuple[str, ...], below: Mapping[str, list[Setting]]) -> str:
    """Add the whole key and the source; a dataclass's own check begins with the field and knows neither."""
    name, _, what = problem.partition(": ")
    source = f" ({below[name][-1].source})" if name in below else ""
    return f"{'.'.join((*path, name))}: {what}{source}"


def _unknown_key(level: Sequence[str], wrong: Setting, siblings: Sequence[str], root: type) -> str:
    """Describe a key under `level` that does not exist, and name the nearest one that does."""
    key = ".".join((*level, *wrong.path))
    known = list(_keys(root, ()))
    one_underscore_too_few = [each for each in known if each.replace(".", "_") == key]
    # Below 0.7 the nearest key is often about something else: max_chunks is no max_document_tokens.
    misspelled = [
        ".".join((*level, each, *wrong.path[1:]))
        for each in get_close_matches(wrong.path[0], siblings, n=1, cutoff=0.7)
    ]
    elsewhere = [each for each in known if each.endswith(f".{wrong.path[-1]}")]
    if meant := one_underscore_too_few + misspelled + elsewhere:
        hint = f"did you mean {meant[0]}?"
    elif siblings:
        hint = f"known here: {', '.join(siblings)}"
    else:
        hint = f"{'.'.join(level)} holds one value"
    return f"{key}: there is no such key ({wrong.source}); {hint}"


def _keys(hint: Any, path: tuple[str, ...]) -> Iterator[str]:
    inner, _ = optional_of(hint)
    if get_origin(inner) is Mapping:
        yield from _keys(get_args(inner)[1], (*path, "NAME"))
    elif is_dataclass(inner):
        for name, below in get_type_hints(inner).items():
            yield from _keys(below, (*path, name))
    else:
        yield ".".join(path)


def to_yaml(tree: object, settings: Sequence[Setting]) -> str:
    """Write a built tree as YAML that `from_file` reads back; a comment says where each value came from."""
    return "\n".join(_yaml_lines(tree, (), settings)) + "\n"


def _yaml_lines(node: object, path: tuple[str, ...], settings: Sequence[Setting]) -> Iterator[str]:
    pairs: Iterable[tuple[str, object]]
    if is_dataclass(node):
        pairs = ((each.name, getattr(node, each.name)) for each in fields(node))
    else:
        assert isinstance(node, Mapping)
        pairs = node.items()
    for key, value in pairs:
        place, indent = (*path, key), "  " * len(path)
        if is_dataclass(value) or (isinstance(value, Mapping) and value):
            yield f"{indent}{json.dumps(key) if not key.isidentifier() else key}:"
            yield from _yaml_lines(value, place, settings)
        else:
            # JSON is YAML.
            written = json.dumps(
                {} if isinstance(value, Mapping) else str(value) if isinstance(value, Path) else value
            )
            yield f"{indent}{key}: {written}  # {_source_of(place, settings)}"


def _source_of(place: tuple[str, ...], settings: Sequence[Setting]) -> str:
    for each in reversed(settings):
        if len(each.path) == len(place) and all(
            a in (b, EVERY) for a, b in zip(each.path, place, strict=True)
        ):
            return each.source
    return "default"
