"""Reads the configuration from a file, the environment and flags; later sources override earlier ones.

Every source becomes a list of settings (a path of keys, a value, its origin). The tree is then built by the
type hints of its dataclasses, so a key that is added there can be set in all sources at once.
"""

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from farrank_rankers.json_values import bounded_text
from farrank_settings.errors import ConfigError

Tree = TypeVar("Tree")

# Stands for every name of a mapping, in a flag that sets all of them.
EVERY = "*"

# Limits of a file. A YAML alias can repeat a part many times, or contain itself.
MAX_FILE_BYTES = 2**20
MAX_VALUES = 100_000
MAX_DEPTH = 20
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"

PREFIX = "FARRANK_"
_SEPARATOR = "__"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and its origin: `path` is the part that is left to walk, `source` names a file or flag."""

    path: tuple[str, ...]
    value: object
    source: str

    def under(self) -> "Setting":
        """The same setting relative to the next level down."""
        return Setting(self.path[1:], self.value, self.source)


@dataclass(frozen=True, slots=True)
class Kinds:
    """The classes of one part of the tree, chosen by the value of its key `kind`.

    All extend `base`, the class that the tree declares. `names` lists the known kinds. `options` finds the
    class of a kind, and raises ConfigError for an unknown one. `default` is the kind of a part that names
    none.
    """

    base: type[Any]
    default: str
    names: Sequence[str]
    options: Callable[[str], type[Any]]


# Reading a tree without kinds.
NO_KINDS = Kinds(type(None), "", (), type)


def from_file(path: Path, text: str | None = None) -> list[Setting]:
    """Read a file by its extension: .toml, .yaml or .yml; `text` replaces the file's content.

    Raises: ConfigError, one line, if the file cannot be read or parsed or has another extension.
    """
    # Imported here, so that uses without a file, such as `farrank serve --help`, need no extra.
    import yaml

    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{path}: a configuration file must end in .yaml, .yml or .toml")
    if text is None:
        text = text_of(path)
    try:
        # An empty file is allowed and sets nothing.
        tree = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text) or {}
        problem = _too_much(tree)
    except RecursionError:
        problem = _TOO_DEEP
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = f"{line}{error.problem or 'not YAML'}"
    except (
        yaml.YAMLError,
        ValueError,
    ) as error:  # both parsers let ValueError through, for an invalid date or an integer that is too long
        problem = " ".join(str(error).split())
    if problem:
        raise ConfigError(f"{path}: {problem}")
    return list(_flatten(tree, (), str(path)))


def from_tree(tree: object, source: str) -> list[Setting]:
    """Read a tree of mappings that another program has parsed; `source` names it in errors.

    Raises: ConfigError, one line, if it is too large, or a key is not text.
    """
    if problem := _too_much(tree):
        raise ConfigError(f"{source}: {problem}")
    return list(_flatten(tree, (), source))


def text_of(path: Path) -> str:
    """Read a file as UTF-8.

    Raises: ConfigError, one line, if it cannot be read, is not UTF-8 or has more than MAX_FILE_BYTES.
    """
    try:
        return bounded_text(path, MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _too_much(tree: object) -> str:
    """Name the limit that a file exceeds; empty if none."""
    level, values = [tree], 0
    for _ in range(MAX_DEPTH):
        below = (each for node in level for each in _below_node(node))
        level = [*islice(below, MAX_VALUES - values + 1)]
        values += len(level)
        if values > MAX_VALUES:
            return f"it holds more than {MAX_VALUES} values"
        if not level:
            return ""
    return _TOO_DEEP


def _below_node(node: object) -> Iterable[object]:
    if isinstance(node, Mapping):
        return node.values()
    return node if isinstance(node, (list, tuple, set)) else ()


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
    # Kubernetes sets FARRANK_PORT and FARRANK_SERVICE_HOST in every container next to a service named
    # farrank, so a variable counts only if its name has two underscores or is close to a key of the
    # configuration.
    begins_like_ours = any(key.startswith(f"{each}_") for each in top)
    return _SEPARATOR in key or begins_like_ours or bool(get_close_matches(key, top, cutoff=0.8))


def build(
    tree: type[Tree], settings: Iterable[Setting], kinds: Kinds = NO_KINDS, *, standing: Any = MISSING
) -> Tree:
    """Build the tree from its defaults, or from a `standing` one, and the settings; later settings win.

    Raises: ConfigError with every problem: the key, the problem and its source.
    """
    builder = _Builder(tree, kinds)
    built: Tree = builder.branch(tree, list(settings), (), standing)
    if builder.problems:
        raise ConfigError(*dict.fromkeys(builder.problems))
    return built


# Stands for a value with a problem; MISSING stands for a default that does not exist.
_BROKEN: Any = object()


class _Builder:
    """Builds one tree, and continues after a problem, so that all are found at once."""

    def __init__(self, root: type[Any], kinds: Kinds) -> None:
        self._root = root
        self._kinds = kinds
        self.problems: list[str] = []

    def branch(self, kind: Any, settings: list[Setting], path: tuple[str, ...], standing: Any) -> Any:
        """Build a dataclass or a mapping; `standing` is its value if nothing is set."""
        for each in settings:
            if not each.path and each.value != {}:
                key = ".".join(path) or "the configuration"
                self.problems.append(f"{key}: {each.value!r} is not allowed; it holds keys ({each.source})")
        build_one = self._mapping if get_origin(kind) is Mapping else self._dataclass
        return build_one(kind, settings, path, standing)

    def _mapping(self, kind: Any, settings: list[Setting], path: tuple[str, ...], standing: Any) -> Any:
        known = {} if standing is MISSING else standing
        keys = dict.fromkeys(each.path[0] for each in settings if each.path)
        # Naming an entry replaces the default entries; setting every entry keeps them.
        values = {}
        for name in [key for key in keys if key != EVERY] or (list(known) if keys else []):
            mine = _below(settings, name, EVERY)
            values[name] = self._value(get_args(kind)[1], mine, (*path, name), known.get(name, MISSING))
        return _BROKEN if _BROKEN in values.values() else values

    def _dataclass(self, kind: Any, settings: list[Setting], path: tuple[str, ...], standing: Any) -> Any:
        if kind is self._kinds.base:
            kind = self._options(settings, path)
            if kind is _BROKEN:
                return _BROKEN
        hints = get_type_hints(kind)
        for each in settings:
            if each.path and each.path[0] not in hints:
                self.problems.append(self._unknown_key(path, each, list(hints)))
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for each_field in fields(kind):
            name = each_field.name
            values[name] = _default(each_field) if standing is MISSING else getattr(standing, name)
            if mine := _below(settings, name):
                sources[name] = f" ({mine[-1].source})"
                values[name] = self._value(hints[name], mine, (*path, name), values[name])
            elif values[name] is MISSING:
                source = f" ({settings[0].source})" if settings else ""
                self.problems.append(f"{'.'.join((*path, name))}: a value is required{source}")
                values[name] = _BROKEN
        if _BROKEN in values.values():
            return _BROKEN
        try:
            return kind(**values)
        except ConfigError as error:
            # A dataclass's own check begins with the field, and knows neither the whole key nor the source.
            for problem in error.problems:
                name, _, what = problem.partition(": ")
                self.problems.append(f"{'.'.join((*path, name))}: {what}{sources.get(name, '')}")
            return _BROKEN

    def _options(self, settings: list[Setting], path: tuple[str, ...]) -> Any:
        """Choose the class of a part by its kind."""
        named = _below(settings, "kind")
        name = self._leaf(str, False, named, (*path, "kind")) if named else self._kinds.default
        if name is _BROKEN:
            return _BROKEN
        try:
            return self._kinds.options(name)
        except ConfigError as error:
            self.problems += [
                f"{'.'.join(path)}.{problem} ({named[-1].source})" for problem in error.problems
            ]
            return _BROKEN

    def _value(self, hint: Any, settings: list[Setting], path: tuple[str, ...], standing: Any) -> Any:
        kind, may_be_none = optional_of(hint)
        if is_dataclass(kind) or get_origin(kind) is Mapping:
            # None discards the settings before it.
            last_none = max((at for at, each in enumerate(settings) if _sets_none(each)), default=-1)
            if may_be_none and last_none == len(settings) - 1:
                return None
            start = MISSING if standing is None or last_none >= 0 else standing
            built = self.branch(kind, settings[last_none + 1 :], path, start)
        else:
            built = self._leaf(kind, may_be_none, settings, path)
        # The existing value is kept, so that the parent's check continues and finds its other problems.
        return standing if built is _BROKEN and standing is not MISSING else built

    def _leaf(self, kind: Any, may_be_none: bool, settings: list[Setting], path: tuple[str, ...]) -> Any:
        if deeper := next((each for each in settings if each.path), None):
            self.problems.append(self._unknown_key(path, deeper, ()))
            return _BROKEN
        last = settings[-1]
        if may_be_none and _sets_none(last):
            return None
        try:
            return _converted(kind, last.value)
        except (ValueError, OverflowError):
            allowed = _CALLED.get(kind) or " or ".join(map(str, get_args(kind)))
            allowed += " or none" if may_be_none else ""
            what = f"{last.value!r} is not allowed; it must be {allowed} ({last.source})"
            self.problems.append(f"{'.'.join(path)}: {what}")
            return _BROKEN

    def _unknown_key(self, level: Sequence[str], wrong: Setting, siblings: Sequence[str]) -> str:
        """Describe a key under `level` that does not exist, and suggest the nearest one that does."""
        key = ".".join((*level, *wrong.path))
        known = list(keys_of(self._root, self._kinds))
        one_underscore_too_few = [each for each in known if each.replace(".", "_") == key]
        # Below 0.7 the nearest key is often unrelated: max_chunks does not mean max_document_tokens.
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


def _below(settings: list[Setting], *names: str) -> list[Setting]:
    return [each.under() for each in settings if each.path and each.path[0] in names]


def _default(each_field: Field[Any]) -> Any:
    factory = each_field.default_factory
    return each_field.default if factory is MISSING else factory()


_CALLED = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text (quote it)",
    Path: "a path",
    tuple[str, ...]: "a list of texts (in flags and variables with commas between)",
    tuple[float, ...]: "a list of numbers (in flags and variables with commas between)",
}
_TRUTH = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)


def _converted(kind: Any, value: object) -> Any:
    """Convert a value to its field's type: files have typed values, variables and flags have strings.

    Raises: ValueError or OverflowError if the value is not of that type.
    """
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    if kind is bool:
        truth = _TRUTH.get(value.lower()) if isinstance(value, str) else value
        if isinstance(truth, bool):
            return truth
    # In Python a bool is an int, but `port: yes` is an error.
    if kind in (int, float) and isinstance(value, (str, int, kind)) and not isinstance(value, bool):
        number = kind(value)
        if kind is int or math.isfinite(number):
            return number
    if kind is str and isinstance(value, str):
        return value
    if kind == tuple[str, ...]:
        texts = value.split(",") if isinstance(value, str) else value
        if isinstance(texts, Sequence) and all(isinstance(each, str) for each in texts):
            return tuple(each.strip() for each in texts if each.strip())
    if kind == tuple[float, ...]:
        numbers = value.split(",") if isinstance(value, str) else value
        if isinstance(numbers, Sequence):
            return tuple(_converted(float, each) for each in numbers)
    if kind is Path and isinstance(value, str) and value:
        return Path(value).expanduser()
    raise ValueError


def optional_of(hint: Any) -> tuple[Any, bool]:
    """Split the hint `X | None` into X and True; return any other hint with False."""
    if get_origin(hint) in (Union, UnionType):
        (kind,) = (each for each in get_args(hint) if each is not NoneType)
        return kind, True
    return hint, False


def _sets_none(setting: Setting) -> bool:
    return not setting.path and str(setting.value).lower() in ("none", "null")


def keys_of(hint: Any, kinds: Kinds = NO_KINDS, path: tuple[str, ...] = ()) -> Iterator[str]:
    """List all keys of a tree, from `path` on; NAME stands for each name of a mapping."""
    inner, _ = optional_of(hint)
    if get_origin(inner) is Mapping:
        yield from keys_of(get_args(inner)[1], kinds, (*path, "NAME"))
    elif inner is kinds.base:
        for kind in kinds.names:
            for name, below in get_type_hints(kinds.options(kind)).items():
                yield from keys_of(below, kinds, (*path, name))
    elif is_dataclass(inner):
        for name, below in get_type_hints(inner).items():
            yield from keys_of(below, kinds, (*path, name))
    else:
        yield ".".join(path)


def to_yaml(tree: object, settings: Sequence[Setting]) -> str:
    """Write a built tree as YAML that `from_file` reads back; a comment names the source of each value."""
    return "\n".join(_yaml_lines(tree, (), settings)) + "\n"


def _yaml_lines(node: Any, path: tuple[str, ...], settings: Sequence[Setting]) -> Iterator[str]:
    pairs = {each.name: getattr(node, each.name) for each in fields(node)} if is_dataclass(node) else node
    for key, value in pairs.items():
        place, indent = (*path, key), "  " * len(path)
        # Names of models may have an asterisk, which means something else in YAML.
        name = key if key.isidentifier() else json.dumps(key)
        if is_dataclass(value) or (isinstance(value, Mapping) and value):
            yield f"{indent}{name}:"
            yield from _yaml_lines(value, place, settings)
        else:
            # JSON is valid YAML, and a path becomes a text in it.
            yield f"{indent}{name}: {json.dumps(value, default=str)}  # {_source_of(place, settings)}"


def _source_of(place: tuple[str, ...], settings: Sequence[Setting]) -> str:
    for each in reversed(settings):
        named = tuple(name if key == EVERY else key for key, name in zip(each.path, place, strict=False))
        if named == place and len(each.path) == len(place):
            return each.source
    return "default"
