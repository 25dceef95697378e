"""A configuration file's plain tree, from YAML or TOML."""

import tomllib
from pathlib import Path

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
