"""The keys of a server's configuration, from its dataclasses."""

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from farrank_first_stage.kinds import INDEX_KINDS
from farrank_server.config.schema import ServerConfig
from farrank_settings.sources import optional_of

_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_LISTS = {tuple[str, ...]: "list of texts", tuple[float, ...]: "list of numbers"}


def markdown() -> str:
    """A section for each part of the tree: its meaning, and a row for each of its keys."""
    return "\n".join(_part(ServerConfig, "", "The whole file"))


def _part(tree: type[Any], path: str, title: str) -> Iterator[str]:
    rows: list[str] = []
    below: list[str] = []
    hints = get_type_hints(tree)
    for each in fields(tree):
        key = f"{path}{each.name}"
        kind, may_be_none = optional_of(hints[each.name])
        if get_origin(kind) is Mapping:
            key, kind = f"{key}.NAME", get_args(kind)[1]
        if kind is INDEX_KINDS.base:
            below += _kinds(key)
        elif is_dataclass(kind):
            assert isinstance(kind, type)
            below += _part(kind, f"{key}.", f"`{key}`")
        else:
            rows.append(f"| `{key}` | {_kind(kind)} | {_default(each, may_be_none)} | {_allowed(each)} |")
    yield from (f"## {title}", "", _meaning(tree), "")
    if rows:
        yield from ("| key | type | default | allowed |", "| --- | --- | --- | --- |", *rows, "")
    yield from below


def _kinds(key: str) -> Iterator[str]:
    for kind in INDEX_KINDS.names:
        yield from _part(INDEX_KINDS.options(kind), f"{key}.", f"`{key}`, kind `{kind}`")


def _meaning(tree: type[Any]) -> str:
    return (inspect.getdoc(tree) or "").replace("<", "&lt;")


def _kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f"`{each}`" for each in get_args(kind))
    return _LISTS.get(kind) or _NAMES.get(kind, "path")


def _default(each: Field[Any], may_be_none: bool) -> str:
    if each.default is MISSING and each.default_factory is MISSING:
        return "required"
    value = each.default if each.default_factory is MISSING else each.default_factory()
    if value is None and may_be_none:
        return "none"
    return f"`{json.dumps(value, default=str)}`"


def _allowed(each: Field[Any]) -> str:
    return str(each.metadata.get("allowed", "")).replace("|", "\\|").replace("<", "&lt;")
