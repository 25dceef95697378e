"""The configuration as a JSON Schema, with which other tools find a wrong key or type before a server does.

It accepts the same files as `sources`, except numbers and booleans written as texts. Only the server checks
rules that no keyword can express, such as that two ports differ.

Source: JSON Schema draft 7, which every version of Helm reads.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from farrank_settings.sources import NO_KINDS, Kinds, optional_of

Schema = dict[str, Any]

_LEAVES: Mapping[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string", "minLength": 1},
    tuple[str, ...]: {"type": "array", "items": {"type": "string"}},
    tuple[float, ...]: {"type": "array", "items": {"type": "number"}},
}


def json_schema(tree: type[Any], kinds: Kinds = NO_KINDS) -> Schema:
    """Describe a dataclass of the configuration, with everything below it."""
    hints = get_type_hints(tree)
    properties, needed = {}, []
    for each in fields(tree):
        properties[each.name] = _described(hints[each.name], kinds) | dict(each.metadata.get("schema", {}))
        if each.default is MISSING and each.default_factory is MISSING:
            needed.append(each.name)
    required: Schema = {"required": needed} if needed else {}
    return {"type": "object", "properties": properties, "additionalProperties": False} | required


def _described(hint: Any, kinds: Kinds) -> Schema:
    kind, may_be_none = optional_of(hint)
    described = _value(kind, kinds)
    if may_be_none and "type" in described:
        return described | {"type": [described["type"], "null"]}
    return {"enum": [*described["enum"], None]} if may_be_none else described


def _value(kind: Any, kinds: Kinds) -> Schema:
    if kind is kinds.base:
        return _of_each_kind(kinds)
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return json_schema(kind, kinds)
    if get_origin(kind) is Mapping:
        return {"type": "object", "additionalProperties": _described(get_args(kind)[1], kinds)}
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    return dict(_LEAVES[kind])


def _of_each_kind(kinds: Kinds) -> Schema:
    """The schema of a part with kinds: it has the options of its kind; a kind not known here may have any."""
    by_kind: list[Schema] = []
    for name in kinds.names:
        named = {"properties": {"kind": {"const": name}}, "required": ["kind"]}
        unnamed = {"not": {"required": ["kind"]}}
        which = {"anyOf": [named, unnamed]} if name == kinds.default else named
        by_kind.append({"if": which, "then": json_schema(kinds.options(name), kinds)})
    return {"type": "object", "properties": {"kind": {"type": "string"}}, "allOf": by_kind}
