"""Jina's rerank."""

from typing import Any

from farrank_loadtest.targets.http import Dialect, route


def dialect(url: str) -> Dialect:
    """Speak to the server at `url`."""
    return Dialect(route(url, "/v1/rerank"), _request, "results", "relevance_score", {})


def _request(query: str, texts: list[str], ranker: str) -> dict[str, Any]:
    # Documents come back unless told otherwise, which would measure the way home.
    named = {"model": ranker} if ranker else {}
    return {"query": query, "documents": texts, "return_documents": False, **named}
