"""TEI's `/info`: describes the default ranker and the limits of a call to TEI's clients."""

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
from farrank_server.http.dialects.shapes import Tei, json_response

# The names that torch uses, and therefore TEI.
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def routes(config: ServerConfig, calls: HttpCalls, models: Models) -> list[Route]:
    """The route of the description."""

    def write(caller: Caller) -> Response:
        return json_response(200, describe(config, models, caller), {})

    def refuse(error: FarrankError) -> Response:
        return Tei().refuse(error, None)

    async def get(request: Request) -> Response:
        return await calls.describe(request, "Info", write, refuse)

    return [Route("/info", get)]


def describe(config: ServerConfig, models: Models, caller: Caller) -> dict[str, Any]:
    """Describe the caller's default ranker with TEI's fields; a field without an equivalent is null.

    Raises: PermissionDenied if the caller may use no ranker.
    """
    scorer = models.ranker(None, caller)
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
