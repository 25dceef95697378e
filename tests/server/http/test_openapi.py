"""The endpoint's description is valid, it names every path, and its examples work."""

from typing import Any

import jsonschema
import openapi_pydantic
import pytest

from farrank_page import openapi
from farrank_server.http.dialects.dialect_request import RerankBody
from farrank_server.http.dialects.score import ScoreBody
from support.http_endpoint import Opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

DESCRIBED = openapi.describe((RerankBody, ScoreBody))
EXAMPLES = [
    (path, method, operation)
    for path, operations in DESCRIBED["paths"].items()
    for method, operation in operations.items()
]


def check(schema: dict[str, Any], value: Any) -> None:
    """Validate a value against a schema of the description."""
    whole = {**schema, "components": DESCRIBED["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


async def test_it_is_openapi_3_1_and_its_schemas_are_schemas() -> None:
    openapi_pydantic.OpenAPI.model_validate(DESCRIBED)
    assert DESCRIBED["openapi"] == "3.1.0"
    for schema in DESCRIBED["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(("path", "method", "operation"), EXAMPLES)
async def test_each_example_is_answered_as_described(
    shared_endpoint: Opened, path: str, method: str, operation: dict[str, Any]
) -> None:
    body = None
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]["application/json"]
        body = content["example"]
        check(content["schema"], body)
    async with shared_endpoint.session.request(method, path, json=body) as answer:
        assert answer.status == 200, await answer.text()
        check(operation["responses"]["200"]["content"]["application/json"]["schema"], await answer.json())
    if body is not None:
        async with shared_endpoint.session.request(method, path, json=[]) as refused:
            assert str(refused.status) in {*operation["responses"], "422"}
            check({"$ref": "#/components/schemas/Problem"}, await refused.json())


async def test_it_is_served_as_json(shared_endpoint: Opened) -> None:
    for path in ("/openapi.json", "/api-doc/openapi.json"):
        async with shared_endpoint.session.get(path) as answer:
            assert await answer.json() == DESCRIBED
