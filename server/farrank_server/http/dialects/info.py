"""Describes what is served: TEI's `/info` and the list of models that OpenAI's clients read."""

from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from farrank_calls.errors import FarrankError
from farrank_server.access.callers import Caller
from farrank_server.config.schema import ServerConfig
from farrank_server.http.calls import HttpCalls
from farrank_server.http.dialects.models import Models
from farrank_server.http.dialects.shapes import Shape, Superset, Tei, json_response

# The names that torch uses, and therefore TEI.
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def routes(config: ServerConfig, calls: HttpCalls, models: Models) -> list[Route]:
    """The routes of the descriptions."""

    async def get(method: str, shape: Shape, content: Callable[[Caller], Any], request: Request) -> Response:
        def write(caller: Caller) -> Response:
            return json_response(200, content(caller), {})

        def refuse(error: FarrankError) -> Response:
            return shape.refuse(error, None)

        return await calls.describe(request, method, write, refuse)

    def listed(caller: Caller) -> Any:
        same = {"object": "model", "created": 0, "owned_by": "farrank"}
        return {"object": "list", "data": [{"id": name, **same} for name in models.names(caller)]}

    return [
        Route("/info", partial(get, "Info", Tei(), partial(describe, config, models))),
        *(Route(path, partial(get, "Models", Superset(), listed)) for path in ("/v1/models", "/models")),
    ]


def describe(config: ServerConfig, models: Models, caller: Caller) -> dict[str, Any]:
    """Describe the caller's default ranker with TEI's fields; a field without an equivalent is null.

    Raises: PermissionDenied if the caller may use no ranker.
    """
    scorer, _, _ = models.ranker(None, caller)
    first = scorer.members[0]
    return {
        "model_id": first.spec.backbone,
        "model_sha": scorer.version,
        "model_dtype": _DTYPES.get(first.capabilities.precision, first.capabilities.precision),
        "served_model_name": scorer.name,
        "model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
        "max_concurrent_requests": config.limits.max_concurrent_calls,
        "max_input_length": max(each.spec.chunking.max_document_tokens for each in scorer.members),
        "max_batch_tokens": first.policy.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": config.limits.max_documents,
        "auto_truncate": True,
        "tokenization_workers": config.tokenizer_threads,
        "version": metadata.version("farrank"),
        "sha": None,
        "docker_label": None,
    }
