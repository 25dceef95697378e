"""Writes answers and errors as each family of clients reads them. Results hold no field of another family.

Sources: Cohere's OpenAPI (cohere-ai/cohere-developer-experience), huggingface/text-embeddings-inference
(router/src/http), the protocols of vLLM and Infinity, the voyageai SDK.
"""

import time
import uuid
from typing import Any, Protocol

import grpc
from starlette.responses import Response

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import FarrankError, TooLarge
from farrank_server.http.calls import refusal_headers, status_of
from farrank_server.http.dialects.answer_parts import best_of, chunks_of, spans_of, warnings_of
from farrank_server.http.dialects.dialect_request import BodyDocument, DialectRequest
from farrank_server.http.json_bodies import JSON, to_json


class Shape(Protocol):
    """Answers and errors in the form that one family of clients reads."""

    def answer(self, request: DialectRequest, answer: pb.RerankResponse) -> Any:
        """The content of an answer's JSON."""

    def refuse(self, error: FarrankError, request: DialectRequest | None) -> Response:
        """The response to an error; `request` is None if the request was not understood."""


def json_response(status: int, content: Any, headers: dict[str, str]) -> Response:
    """A response in JSON."""
    return Response(to_json(content), status, headers, JSON)


class Superset:
    """Cohere's shape (v1 and v2) with the additions of Jina, vLLM and Infinity; all their clients read it.

    Infinity's clients expect a result's document as a text, the others as an object.
    """

    def __init__(self, version: str = "2", *, documents_are_texts: bool = False) -> None:
        self._version = version
        self._documents_are_texts = documents_are_texts

    def answer(self, request: DialectRequest, answer: pb.RerankResponse) -> Any:
        """Results with `relevance_score`; `meta` holds Cohere's billing and warnings about unread tokens."""
        tokens = answer.usage.tokens
        meta = {
            "api_version": {"version": self._version},
            "billed_units": {"search_units": 1 + (len(request.texts) - 1) // 100},
            "tokens": {"input_tokens": tokens, "output_tokens": 0},
            "rounds": answer.usage.rounds,
            "chunks": chunks_of(answer),
        }
        warnings = warnings_of(answer)
        if answer.usage.ended_early:
            warnings.append(f"time or a failure ended the call after round {answer.usage.rounds}")
        if warnings:
            meta["warnings"] = warnings
        return {
            "id": uuid.uuid4().hex,
            "object": "rerank",
            "created": int(time.time()),
            "model": answer.ranker.name,
            "results": [self._result(request, answer, each) for each in best_of(request, answer)],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": meta,
        }

    def _result(
        self, request: DialectRequest, answer: pb.RerankResponse, result: pb.Result
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"index": result.index, "relevance_score": result.score}
        if request.returns_documents:
            text = request.texts[result.index]
            content["document"] = (
                text if self._documents_are_texts else _object_of(request, result.index, text)
            )
        if request.wants_spans and (spans := spans_of(request, answer, result)):
            content["relevant_spans"] = spans
        return content

    def refuse(self, error: FarrankError, request: DialectRequest | None) -> Response:
        """An error with its message in each field where one of the clients looks for it."""
        status, message = status_of(error), error.message
        kind = "".join(word.title() for word in error.code.name.split("_"))
        reason = {"message": message, "type": kind, "param": None, "code": status}
        content = {"id": uuid.uuid4().hex, "message": message, "detail": message, "error": reason}
        return json_response(status, content, refusal_headers(error))


def _object_of(request: DialectRequest, index: int, text: str) -> dict[str, Any]:
    given: BodyDocument = request.documents[index]
    if isinstance(given, str):
        return {"text": text}
    own = given.get("text")
    # Clients read `text` as a text: null or a number in the caller's own field would break them.
    return {**given, "text": own if isinstance(own, str) else text}


class Voyage:
    """Voyage's shape: `data` instead of `results`, documents as texts."""

    def answer(self, request: DialectRequest, answer: pb.RerankResponse) -> Any:
        """An object with the results in `data`."""
        data = []
        for each in best_of(request, answer):
            content: dict[str, Any] = {"index": each.index, "relevance_score": each.score}
            if request.returns_documents:
                content["document"] = request.texts[each.index]
            data.append(content)
        return {
            "object": "list",
            "data": data,
            "model": answer.ranker.name,
            "usage": {"total_tokens": answer.usage.tokens},
        }

    def refuse(self, error: FarrankError, request: DialectRequest | None) -> Response:
        """An error with its message in `detail`."""
        return json_response(status_of(error), {"detail": error.message}, refusal_headers(error))


class Weaviate(Superset):
    """The shape of Weaviate's module reranker-transformers: a score for each document, in their order."""

    def answer(self, request: DialectRequest, answer: pb.RerankResponse) -> Any:
        """The documents with their scores."""
        scores = [
            {"document": request.texts[each.index], "score": each.score}
            for each in sorted(answer.results, key=lambda each: each.index)
        ]
        return {"query": request.query, "scores": scores}

    def refuse(self, error: FarrankError, request: DialectRequest | None) -> Response:
        """An error with its message in `error`, as a text."""
        return json_response(status_of(error), {"error": error.message}, refusal_headers(error))


class Nvidia(Superset):
    """NVIDIA's shape: `rankings` with logits, which are the ranker's own scores."""

    def answer(self, request: DialectRequest, answer: pb.RerankResponse) -> Any:
        """The rankings, best first."""
        tokens = answer.usage.tokens
        return {
            "rankings": [{"index": each.index, "logit": each.score} for each in best_of(request, answer)],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }


_TEI_TYPES = {
    grpc.StatusCode.INVALID_ARGUMENT: (422, "Validation"),
    # TEI answers 401 without a body; its clients know no error type for it.
    grpc.StatusCode.UNAUTHENTICATED: (401, "Validation"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "Validation"),
    grpc.StatusCode.NOT_FOUND: (404, "Validation"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "Overloaded"),
    grpc.StatusCode.UNAVAILABLE: (503, "Unhealthy"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (504, "Overloaded"),
    grpc.StatusCode.UNIMPLEMENTED: (415, "Validation"),
    grpc.StatusCode.FAILED_PRECONDITION: (424, "Backend"),
    grpc.StatusCode.INTERNAL: (424, "Backend"),
}


class Tei:
    """text-embeddings-inference's shape: a bare list of all texts, best first."""

    def answer(self, request: DialectRequest, answer: pb.RerankResponse) -> Any:
        """A bare list of results."""
        return [
            {"index": each.index, "score": each.score}
            | ({"text": request.texts[each.index]} if request.returns_documents else {})
            for each in best_of(request, answer)
        ]

    def refuse(self, error: FarrankError, request: DialectRequest | None) -> Response:
        """An error with one of TEI's error types."""
        status, kind = _TEI_TYPES[error.code]
        if isinstance(error, TooLarge):
            status = 413
        elif request is not None and not request.texts:
            status, kind = 400, "Empty"
        content = {"error": error.message, "error_type": kind}
        return json_response(status, content, refusal_headers(error))
