"""vLLM's `/score`: the scores of pairs in the order of the request, without a ranking.

Source: vLLM's OpenAI-compatible server (score API).
"""

import time
import uuid
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from farrank.v1 import rerank_pb2 as pb
from farrank_calls.errors import FarrankError, InvalidArgument
from farrank_server.access.callers import Caller
from farrank_server.config.schema import LimitsConfig
from farrank_server.http.calls import HttpCalls
from farrank_server.http.dialects.answer_parts import headers_of
from farrank_server.http.dialects.dialect_request import DepthBody, DialectRequest, RerankBody, understand
from farrank_server.http.dialects.models import Models
from farrank_server.http.dialects.shapes import Superset, json_response
from farrank_server.http.json_bodies import decoded

Texts = str | list[str] | None


class ScoreBody(msgspec.Struct):
    """`text_1` is the query, `text_2` what is scored; newer clients call them `queries` and `documents`."""

    text_1: Texts = None
    text_2: Texts = None
    queries: Texts = None
    documents: Texts = None
    model: str | None = None
    use_activation: bool | None = None
    instruction: str | None = None
    truncate_prompt_tokens: int | None = None
    max_tokens_per_query: int | None = None
    depth: Literal["all", "adaptive"] | DepthBody | None = None


def routes(calls: HttpCalls, models: Models) -> list[Route]:
    """The routes at which pairs are scored."""

    async def post(request: Request) -> Response:
        return await calls.answer(request, "Rerank", ScoreExchange(models))

    return [Route(path, post, methods=["POST"]) for path in ("/score", "/v1/score")]


class ScoreExchange:
    """One request and its answer. All pairs share one query, as in a call of the contract."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._request: DialectRequest | None = None

    def read(self, body: bytes, limits: LimitsConfig, caller: Caller) -> pb.RerankRequest:
        """Turn a body into the contract's request.

        Raises: InvalidArgument naming the field; NotFound or PermissionDenied if there is no such model.
        """
        read = decoded(body, ScoreBody, limits)
        query = read.queries if read.text_1 is None else read.text_1
        texts = read.documents if read.text_2 is None else read.text_2
        if isinstance(query, list):
            if len(query) != 1:
                raise InvalidArgument(f"text_1: has {len(query)} entries; it must be one text")
            query = query[0]
        if texts is None:
            raise InvalidArgument("text_2: is missing; it must be a text or a list of texts")
        documents = [texts] if isinstance(texts, str) else texts
        fields = RerankBody(
            query,
            [*documents],
            model=read.model,
            use_activation=read.use_activation,
            instruction=read.instruction,
            truncate_prompt_tokens=read.truncate_prompt_tokens,
            max_tokens_per_query=read.max_tokens_per_query,
            depth=read.depth,
        )
        self._request = understand(fields, self._models, caller)
        return self._request.to_pb()

    def write(self, answer: pb.RerankResponse) -> Response:
        """Write the scores in the order of the texts."""
        assert self._request is not None
        tokens = answer.usage.tokens
        content = {
            "id": f"score-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": answer.ranker.name,
            "data": [
                {"index": each.index, "object": "score", "score": each.score}
                for each in sorted(answer.results, key=lambda each: each.index)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return json_response(200, content, headers_of(self._request, answer))

    def refuse(self, error: FarrankError) -> Response:
        """Write an error as vLLM's other routes do."""
        return Superset().refuse(error, self._request)
