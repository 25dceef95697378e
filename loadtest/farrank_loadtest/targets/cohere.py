"""Cohere's rerank, v1 and v2, which Infinity, vLLM and others speak as well."""

from typing import Any
from urllib.parse import urlsplit

from farrank_loadtest.targets.http import Dialect, route


def dialect(url: str) -> Dialect:
    """Speak v1 to the server at `url`, or v2 where the URL itself ends in `/v2/rerank`."""
    chosen = route(url, "/v1/rerank")
    request = _request_v2 if urlsplit(chosen).path.endswith("/v2/rerank") else _request_v1
    return Dialect(chosen, request, "results", "relevance_score", {})


def _request_v1(query: str, texts: list[str], ranker: str) -> dict[str, Any]:
    return _request_v2(query, texts, ranker) | {"return_documents": False}


def _request_v2(query: str, texts: list[str], ranker: str) -> dict[str, Any]:
    named = {"model": ranker} if ranker else {}
    return {"query": query, "documents": texts, **named}
