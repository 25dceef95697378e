"""The paths of other rerankers' APIs, and the shape in which requests at each are answered."""

import re
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import FarrankError, InvalidArgument
from farrank_server.access.callers import Caller
from farrank_server.config.schema import LimitsConfig
from farrank_server.http.calls import HttpCalls
from farrank_server.http.dialects import score
from farrank_server.http.dialects.answer_parts import check_whole, headers_of
from farrank_server.http.dialects.dialect_request import DialectRequest, RerankBody, understand
from farrank_server.http.dialects.models import Models
from farrank_server.http.dialects.shapes import (
    Nvidia,
    Shape,
    Superset,
    Tei,
    Voyage,
    Weaviate,
    json_response,
)
from farrank_server.http.json_bodies import decoded

# The paths at which a model name of Voyage selects its shape, and llama.cpp's, which ignores models' names.
VOYAGE_BY_NAME = ("/rerank", "/v1/rerank", "/v1/v1/rerank")
IGNORE_MODELS = ("/reranking", "/v1/reranking")

# /v1/v1 and /v1/v2 serve clients that add the version to an address that has one already.
PATHS: dict[str, Shape] = {
    **dict.fromkeys(("/rerank", "/v2/rerank", "/v1/v2/rerank"), Superset()),
    **dict.fromkeys(("/v1/rerank", "/v1/v1/rerank"), Superset("1")),
    **dict.fromkeys(("/infinity/rerank", "/infinity/v1/rerank"), Superset(documents_are_texts=True)),
    **dict.fromkeys(("/voyage/rerank", "/voyage/v1/rerank"), Voyage()),
    **dict.fromkeys(("/", "/invocations"), Tei()),
    "/weaviate/rerank": Weaviate(),
    **dict.fromkeys(("/ranking", "/v1/ranking"), Nvidia()),
    **dict.fromkeys(IGNORE_MODELS, Superset()),
}

# Voyage's JavaScript client leaves out an unset top_k. Names of Cohere's models have a letter in this place.
VOYAGE_MODEL = re.compile(r"(voyage(ai)?/)?rerank-(lite-)?\d", re.IGNORECASE)


def routes(calls: HttpCalls, models: Models) -> list[Route]:
    """The routes at which documents are reranked or scored."""

    async def post(path: str, request: Request) -> Response:
        return await calls.answer(request, "Rerank", RerankExchange(models, path))

    return [
        *(Route(path, partial(post, path), methods=["POST"]) for path in PATHS),
        *score.routes(calls, models),
    ]


# Limit on the bytes in which the shape of an invalid body is guessed; the body may be long.
GUESSED_FROM_BYTES = 65_536


class RerankExchange:
    """One request and its answer. The request's fields decide on the shape; otherwise the path does."""

    def __init__(self, models: Models, path: str) -> None:
        self._models = models
        self._path = path
        self._shape = PATHS[path]
        self._request: DialectRequest | None = None

    def read(self, body: bytes, limits: LimitsConfig, caller: Caller) -> pb.RerankRequest:
        """Turn a body into the contract's request.

        Raises: InvalidArgument naming the field; NotFound or PermissionDenied if there is no such model.
        """
        try:
            fields = decoded(body, RerankBody, limits)
        except InvalidArgument:
            # The body is invalid, but guessing its shape lets the client understand the error.
            if body.find(b'"texts"', 0, GUESSED_FROM_BYTES) >= 0:
                self._shape = Tei()
            raise
        if fields.texts is not None:
            self._shape = Tei()
        elif fields.passages is not None:
            self._shape = Nvidia()
        elif fields.top_k is not msgspec.UNSET or (
            self._path in VOYAGE_BY_NAME and VOYAGE_MODEL.match(fields.model or "")
        ):
            self._shape = Voyage()
        asked = {"evidence": fields.evidence == "sentences", "context_tokens": fields.context_tokens}
        for name, is_set in asked.items():
            if is_set and type(self._shape) is not Superset:
                raise InvalidArgument(
                    f"{name}: is {getattr(fields, name)!r}; only Cohere's shape has a field for the answer, "
                    f"not {self._path}"
                )
        self._request = understand(fields, self._models, caller, accepts_unknown=self._path in IGNORE_MODELS)
        return self._request.to_pb()

    def write(self, answer: pb.RerankResponse) -> Response:
        """Write the answer in the client's shape.

        Raises: InvalidArgument if a text was cut and the client does not allow that.
        """
        assert self._request is not None
        check_whole(self._request, answer)
        return json_response(
            200, self._shape.answer(self._request, answer), headers_of(self._request, answer)
        )

    def refuse(self, error: FarrankError) -> Response:
        """Write an error in the client's shape."""
        return self._shape.refuse(error, self._request)
