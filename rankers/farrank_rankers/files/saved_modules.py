"""Files of sentence-transformers at the top of a model's folder: its modules, and its prompts by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farrank_rankers.errors import SourceError
from farrank_rankers.json_values import parse_json, read_json, read_value

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"


def listed_modules(folder: Path) -> list[dict[str, Any]]:
    """Read modules.json. Raises: SourceError naming it."""
    path = folder / MODULES
    modules = parse_json(path)
    listed = modules if isinstance(modules, list) else []
    if not listed or not all(isinstance(each, dict) and {"type", "path"} <= each.keys() for each in listed):
        raise SourceError(f"{path} must list modules with type and path")
    return listed


def kind_of(module: Mapping[str, Any]) -> str:
    """Name a module's class, without its package."""
    return str(module["type"]).rsplit(".", 1)[-1]


def module_kinds(folder: Path) -> list[str]:
    """Name the classes that modules.json lists. Raises: SourceError naming it."""
    return [kind_of(module) for module in listed_modules(folder)]


def read_config(folder: Path) -> dict[str, Any]:
    """Read config_sentence_transformers.json; empty if there is none. Raises: SourceError naming it."""
    path = folder / CONFIG
    return read_json(path) if path.is_file() else {}


def read_prompts(folder: Path) -> dict[str, str]:
    """Read prompts by their names; null means no prompt. Raises: SourceError naming file and prompt."""
    prompts: dict[str, str | None] = read_value(
        Mapping[str, str | None],
        read_config(folder).get("prompts") or {},
        f"{folder / CONFIG}: prompts",
        SourceError,
    )
    return {name: text or "" for name, text in prompts.items()}


def default_prompt(folder: Path) -> str:
    """Read the default prompt; usually there is none. Raises: SourceError naming the file."""
    name, prompts = read_config(folder).get("default_prompt_name"), read_prompts(folder)
    if name is None:
        return ""
    if name not in prompts:
        known = ", ".join(prompts) or "none"
        raise SourceError(f"{folder / CONFIG}: default_prompt_name is {name!r}; prompts has {known}")
    return prompts[name]
