"""Text Embeddings Inference's rerank over HTTP."""

from typing import Any

from farrank_loadtest.targets.http import Dialect, route
from farrank_loadtest.targets.target import TargetError

# Whole milliseconds each.
# Source: https://github.com/huggingface/text-embeddings-inference, router/src/lib.rs
_STAGE_HEADERS = {
    "total": "x-total-time",
    "tokenization": "x-tokenization-time",
    "queue": "x-queue-time",
    "inference": "x-inference-time",
}


def dialect(url: str) -> Dialect:
    """Speak to the server at `url`; its answer is a bare array."""
    return Dialect(route(url, "/rerank"), _request, None, "score", _STAGE_HEADERS)


def _request(query: str, texts: list[str], ranker: str) -> dict[str, Any]:
    if ranker:
        raise TargetError(
            "no such ranker", f"a TEI server holds one model and knows no name such as {ranker!r}"
        )
    # Logits are what other servers compare by; and a text beyond the model's limit is an error unless it
    # may be cut.
    return {"query": query, "texts": texts, "raw_scores": True, "truncate": True}
