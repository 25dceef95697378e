"""Describes the HTTP endpoint's requests and answers, as OpenAPI 3.1."""

from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from farrank.v1 import rerank_pb2 as pb

Schema = dict[str, Any]

_SERVICE = pb.DESCRIPTOR.services_by_name["RerankService"]
_REF = "#/components/schemas/{name}"


def routes(bodies: Sequence[type]) -> list[Route]:
    """The description at `/openapi.json`, and where TEI has it.

    `bodies` are the types of the dialects' requests.
    """
    written = msgspec.json.encode(describe(bodies))

    async def get(request: Request) -> Response:
        return Response(written, media_type="application/json")

    return [Route("/openapi.json", get), Route("/api-doc/openapi.json", get)]


def describe(bodies: Sequence[type]) -> Schema:
    """The whole description. Every operation has an example that works on a server with one ranker."""
    components = _messages()
    _, described = msgspec.json.schema_components(bodies, ref_template=_REF)
    components.update(described)
    components.update(ANSWERS)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Farrank",
            "version": metadata.version("farrank"),
            "summary": "Reranks whole long documents and returns the passages that decided.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {**_dialects(), **_contract(), **_descriptions()},
        "components": {"schemas": components, "securitySchemes": _KEYS},
        # The description is the same for servers that require an API key and for those that do not.
        "security": [{}, *({name: []} for name in _KEYS)],
    }


_TEXTS = ["The Rhine rises in the Alps.", "Bread is baked from flour."]
_RERANK = {"model": "rerank-v3.5", "query": "where does the river rise?", "documents": _TEXTS, "top_n": 1}
_TEI = {"query": "where does the river rise?", "texts": _TEXTS, "return_text": True}
_VOYAGE = {"model": "rerank-2", "query": "where does the river rise?", "documents": _TEXTS, "top_k": 1}

_DIALECTS = {
    "/v2/rerank": (
        "Rerank as Cohere's v2",
        "Also at /rerank, /v1/v2/rerank and, as llama.cpp's, /reranking and /v1/reranking. At every path a "
        "request with `texts` is answered as by text-embeddings-inference, one with `top_k` as by Voyage.",
        "RerankBody",
        "Ranking",
        {**_RERANK, "relevant_spans": {"mode": "enabled"}},
    ),
    "/v1/rerank": (
        "Rerank as Cohere's v1, Jina and vLLM",
        "Also at /v1/v1/rerank, and for Infinity's clients at /infinity/rerank.",
        "RerankBody",
        "Ranking",
        {**_RERANK, "return_documents": True},
    ),
    "/rerank": (
        "Rerank as text-embeddings-inference",
        "Also at / and /invocations. Chosen by `texts`.",
        "RerankBody",
        "TeiRanking",
        _TEI,
    ),
    "/voyage/v1/rerank": (
        "Rerank as Voyage",
        "Chosen by `top_k` at the other paths; at /rerank and /v1/rerank also by a model such as rerank-2.5.",
        "RerankBody",
        "VoyageRanking",
        _VOYAGE,
    ),
    "/v1/score": (
        "Score pairs as vLLM",
        "Also at /score. One query for all texts; scores stand in the order of the texts.",
        "ScoreBody",
        "Scores",
        {"text_1": "where does the river rise?", "text_2": _TEXTS},
    ),
}

_CONTRACT = {
    "Rerank": {"query": "where does the river rise?", "documents": [{"id": "a", "text": _TEXTS[0]}]},
    "SearchAndRerank": {"query": "where does the river rise?", "k": 10},
    "ListRankers": {},
}


def _object(required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SCORE: Schema = {"type": "number"}


def _listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_SPAN = _object("start end score", start=_COUNT, end=_COUNT, score=_SCORE)
_DOCUMENT = {"type": ["object", "string"]}
_USAGE = _object("total_tokens", total_tokens=_COUNT, prompt_tokens=_COUNT)
_META = _object(
    "api_version billed_units tokens",
    api_version=_object("version", version=_TEXT),
    billed_units=_object("search_units", search_units=_COUNT),
    tokens=_object("input_tokens output_tokens", input_tokens=_COUNT, output_tokens=_COUNT),
    rounds=_COUNT,
    chunks=_object("read scored cut", read=_COUNT, scored=_COUNT, cut=_COUNT),
    warnings=_listed(_TEXT),
)
_RESULT = _object(
    "index relevance_score",
    index=_COUNT,
    relevance_score=_SCORE,
    document=_DOCUMENT,
    relevant_spans=_listed(_SPAN),
)
_RANKED = _object(
    "id object created model results usage meta",
    id=_TEXT,
    object=_TEXT,
    created=_COUNT,
    model=_TEXT,
    results=_listed(_RESULT),
    usage=_USAGE,
    meta=_META,
)
ANSWERS: dict[str, Schema] = {
    "Ranking": _RANKED,
    "TeiRanking": _listed(_object("index score", index=_COUNT, score=_SCORE, text=_TEXT)),
    "VoyageRanking": _object(
        "object data model usage", object=_TEXT, data=_listed(_RESULT), model=_TEXT, usage=_USAGE
    ),
    "Scores": _object(
        "id object created model data usage",
        id=_TEXT,
        object=_TEXT,
        created=_COUNT,
        model=_TEXT,
        data=_listed(_object("index object score", index=_COUNT, object=_TEXT, score=_SCORE)),
        usage=_USAGE,
    ),
    "Info": _object("model_id model_type max_client_batch_size version", model_id=_TEXT, version=_TEXT),
    "ModelList": _object(
        "object data", object=_TEXT, data=_listed(_object("id object", id=_TEXT, object=_TEXT))
    ),
    "JudgedSets": _object(
        "sets",
        sets=_listed(
            _object(
                "index questions",
                index=_TEXT,
                questions=_listed(
                    _object(
                        "id text grades",
                        id=_TEXT,
                        text=_TEXT,
                        grades={"type": "object", "additionalProperties": _COUNT},
                    )
                ),
            )
        ),
    ),
    "Health": _object("status", status={"enum": ["serving", "not serving"]}),
    # Each dialect has its own fields; a client reads those that it knows.
    "Problem": _object(
        "",
        code=_TEXT,
        message=_TEXT,
        detail=_TEXT,
        error={"type": ["object", "string"]},
        error_type=_TEXT,
        id=_TEXT,
    ),
}
ANSWERS["Problem"].pop("required")

_PROBLEMS = {
    "400": "The request is wrong: the message names the field, the problem and the limit (TEI's routes: 422)",
    "401": "The API key is missing or not valid: see WWW-Authenticate",
    "403": "The key may not use that model, ranker or index: the message lists those that it may use",
    "404": "No such model, ranker or index: the message lists the known ones",
    "413": "The body has more bytes than limits.max_request_bytes",
    "415": "The body is compressed, and not with gzip (the contract's methods: 501); "
    "or it comes from a web page and is not JSON",
    "429": "No room now, or the key's rate is used up: Retry-After says when to retry",
    "500": "A bug; the server's log has the traceback (TEI's routes: 424)",
    "503": "Draining, or the device is not ready: Retry-After says when to retry",
    "504": "The deadline has passed or would pass: see Connect-Timeout-Ms",
}

_KEY_PROBLEMS = {f"_{status}": _PROBLEMS[status] for status in ("401", "403", "429")}

_KEYS = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "The API key, if the server requires one",
    },
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}

_TIMEOUT = {
    "name": "Connect-Timeout-Ms",
    "in": "header",
    "description": "The call's deadline, in milliseconds; without it limits.default_timeout_s counts.",
    "schema": {"type": "integer", "minimum": 0, "maximum": 9_999_999_999},
}


def _content(name: str, example: Any = None) -> Schema:
    content: Schema = {"schema": {"$ref": _REF.format(name=name)}}
    if example is not None:
        content["example"] = example
    return {"application/json": content}


def _operation(summary: str, text: str, body: str, answer: str, example: Any) -> Schema:
    problems = {
        status: {"description": what, "content": _content("Problem")} for status, what in _PROBLEMS.items()
    }
    return {
        "summary": summary,
        "description": text,
        "parameters": [_TIMEOUT],
        "requestBody": {"required": True, "content": _content(body, example)},
        "responses": {"200": {"description": "The answer", "content": _content(answer)}, **problems},
    }


def _dialects() -> Schema:
    return {path: {"post": _operation(*parts)} for path, parts in _DIALECTS.items()}


def _contract() -> Schema:
    return {
        f"/{_SERVICE.full_name}/{method.name}": {
            "post": _operation(
                f"{method.name}, by the Connect protocol",
                "The contract of rerank.proto in protobuf's JSON; application/proto is accepted, too.",
                method.input_type.name,
                method.output_type.name,
                _CONTRACT[method.name],
            )
        }
        for method in _SERVICE.methods
    }


def _descriptions() -> Schema:
    def get(summary: str, answer: str, **others: str) -> Schema:
        described = {"200": "The answer", **{status.lstrip("_"): what for status, what in others.items()}}
        responses = {
            status: {
                "description": what,
                "content": _content("Problem" if status in ("401", "403", "429") else answer),
            }
            for status, what in described.items()
        }
        return {"get": {"summary": summary, "responses": responses}}

    return {
        "/health": get(
            "Whether the server accepts calls", "Health", _503="Draining, or the device is not ready"
        ),
        "/info": get(
            "The default model and the limits, as text-embeddings-inference reports them",
            "Info",
            **_KEY_PROBLEMS,
        ),
        "/v1/models": get(
            "The rankers that the caller may use, as OpenAI's clients read them", "ModelList", **_KEY_PROBLEMS
        ),
        "/judgements.json": get(
            "The judged questions of the indexes that the caller may search, where the evidence page is on",
            "JudgedSets",
            **_KEY_PROBLEMS,
        ),
    }


_SCALARS: dict[int, Schema] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_INT32: {"type": "integer"},
    FieldDescriptor.TYPE_UINT32: _COUNT,
    # protobuf's JSON writes 64-bit integers as text, and reads both forms.
    FieldDescriptor.TYPE_UINT64: {"type": ["string", "integer"]},
    FieldDescriptor.TYPE_FLOAT: _SCORE,
    FieldDescriptor.TYPE_DOUBLE: _SCORE,
}


def _messages() -> dict[str, Schema]:
    """The messages of the contract, in protobuf's JSON mapping."""
    return {
        message.name: {
            "type": "object",
            "properties": {field.json_name: _field(field) for field in message.fields},
        }
        for message in _reached()
    }


def _reached() -> Iterator[Descriptor]:
    seen: dict[str, Descriptor] = {}
    waiting: list[Descriptor] = [
        each for one in _SERVICE.methods for each in (one.input_type, one.output_type)
    ]
    while waiting:
        message = waiting.pop()
        if message.full_name not in seen:
            seen[message.full_name] = message
            inner = (field.message_type for field in message.fields)
            waiting += [each for each in inner if each is not None and not each.GetOptions().map_entry]
    return iter(seen.values())


def _field(field: FieldDescriptor) -> Schema:
    message: Descriptor | None = field.message_type
    enum: EnumDescriptor | None = field.enum_type
    schema: Schema
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _field(message.fields_by_name["value"])}
    if message is not None:
        schema = {"$ref": _REF.format(name=message.name)}
    elif enum is not None:
        schema = {"enum": [value.name for value in enum.values]}
    else:
        schema = _SCALARS[field.type]
    return _listed(schema) if field.is_repeated else schema
