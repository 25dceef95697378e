"""The operations of the HTTP endpoint, from its OpenAPI description."""

import json
from collections.abc import Iterator
from typing import Any

from farrank_page.openapi import describe
from farrank_server.http.dialects.dialect_request import RerankBody
from farrank_server.http.dialects.score import ScoreBody


def markdown() -> str:
    """A section for each operation, and the fields of each type."""
    described = describe((RerankBody, ScoreBody))
    lines: list[str] = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            lines += _operation(f"{method.upper()} {path}", operation)
    lines += ["## Types", ""]
    for name, schema in described["components"]["schemas"].items():
        lines += [f"### {name}", "", *_fields(schema), ""]
    return "\n".join(lines)


def _operation(title: str, operation: dict[str, Any]) -> Iterator[str]:
    yield from (
        f"## `{title}`",
        "",
        f"{operation['summary']}. {operation.get('description', '')}".strip(),
        "",
    )
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        example = json.dumps(content["example"], indent=2, ensure_ascii=False)
        yield from (
            f"The request is {_type(content['schema'])}, for example:",
            "",
            "```json",
            example,
            "```",
            "",
        )
    yield from ("| status | answer | meaning |", "| --- | --- | --- |")
    for status, answer in operation["responses"].items():
        schema = answer["content"]["application/json"]["schema"]
        yield f"| {status} | {_type(schema)} | {answer['description']} |"
    yield ""


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    if "properties" not in schema:
        yield f"It is {_type(schema)}."
        return
    required = schema.get("required", ())
    yield from ("| field | type | |", "| --- | --- | --- |")
    for name, each in schema["properties"].items():
        yield f"| `{name}` | {_type(each)} | {'required' if name in required else ''} |"


def _type(schema: dict[str, Any]) -> str:
    """The words for a schema, in one line."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if "additionalProperties" in schema and isinstance(schema["additionalProperties"], dict):
        return f"object of {_type(schema['additionalProperties'])}"
    if "properties" in schema:
        return "object (" + ", ".join(f"`{name}`" for name in schema["properties"]) + ")"
    kind = schema.get("type", "any value")
    return " or ".join(kind) if isinstance(kind, list) else kind
