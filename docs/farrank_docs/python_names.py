"""The public Python names, from their signatures and docstrings."""

import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import farrank

LIST = Path(__file__).parents[1] / "reference" / "public-names.md"


def markdown() -> str:
    """A section for each module of docs/reference/public-names.md, with an entry for each name."""
    lines = list(_module("farrank", (*farrank.__all__, "Reranker")))
    for module, names in listed():
        lines += _module(module, names)
    return "\n".join(lines)


def listed() -> Iterator[tuple[str, list[str]]]:
    """Yield each module of the page with its public names."""
    page = LIST.read_text(encoding="utf-8")
    for module, names in re.findall(
        r"^\| (?:\| )?`(farrank_\w+(?:\.\w+)*)` \| \[?(`[^|]*?`)(?:\]| \|)", page, re.MULTILINE
    ):
        yield module, re.findall(r"`(\w+)`", names)


def _module(module: str, names: tuple[str, ...] | list[str]) -> Iterator[str]:
    found = importlib.import_module(module)
    yield from (f"## `{module}`", "")
    for name in names:
        yield from _entry(f"{module}.{name}", name, getattr(found, name), 3)


def _entry(title: str, name: str, value: Any, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} `{title}`", "")
    if inspect.isclass(value) or inspect.isroutine(value):
        yield from ("```python", _signature(name, value), "```", "", _text(value), "")
    else:
        yield from (f"A value of type `{type(value).__name__}`.", "")
    if inspect.isclass(value) and issubclass(value, Enum):
        yield from (", ".join(f"`{each.name}`" for each in value) + ".", "")
    elif inspect.isclass(value):
        for below, member in vars(value).items():
            if below.startswith("_"):
                continue
            routine = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if inspect.isroutine(routine):
                yield from _entry(f"{name}.{below}", below, routine, level + 1)
            elif isinstance(member, property):
                yield from (f"{'#' * (level + 1)} `{name}.{below}`", "", _text(member), "")


def _signature(name: str, value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parts = [_named(str(each)) for each in signature.parameters.values()]
    kinds = [each.kind for each in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returned = signature.return_annotation
    end = "" if returned is signature.empty else f" -> {_named(inspect.formatannotation(returned))}"
    line = f"{name}({', '.join(parts)}){end}"
    return (
        line if len(line) <= 90 else "\n".join((f"{name}(", *(f"    {each}," for each in parts), f"){end}"))
    )


def _named(text: str) -> str:
    """Shorten names to their last part, and objects, whose address changes with each run, to their names."""
    text = re.sub(r"<function (?:<lambda>|([\w.]+)) at 0x\w+>", lambda found: found[1] or "...", text)
    text = re.sub(r"\*?<class '([\w.]+)'>", r"\1", text)
    return re.sub(r"~?\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text)


def _text(value: Any) -> str:
    """The docstring as Markdown: a paragraph for each of its sections."""
    text = (inspect.getdoc(value) or "").replace("<", "&lt;")
    return re.sub(r"\n(?=(?:Raises|Shapes|Source|Units): )", "\n\n", text)
