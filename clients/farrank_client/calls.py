"""The calls of the service as values: method, request, and how to read the response.

Both clients build them here, so that neither knows more than how to send one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from farrank.v1 import rerank_pb2
from farrank_client import documents as wire_documents
from farrank_client.catalog import Catalog
from farrank_client.documents import Document
from farrank_client.ranking import Ranking

Response = TypeVar("Response", bound=Message)
Answer = TypeVar("Answer")

_SERVICE = rerank_pb2.DESCRIPTOR.services_by_name["RerankService"].full_name


@dataclass(frozen=True, slots=True)
class Call(Generic[Response, Answer]):
    """One unary call: its full method name, its request, its response's type and how to read that."""

    method: str
    request: Message
    response_type: type[Response]
    read: Callable[[Response], Answer]


def rerank(
    query: str, documents: Sequence[str | Document], options: rerank_pb2.RerankOptions
) -> Call[rerank_pb2.RerankResponse, Ranking]:
    """Rerank documents that the caller brings."""
    request = rerank_pb2.RerankRequest(
        query=query, documents=wire_documents.to_pb(documents), options=options
    )
    return Call(f"/{_SERVICE}/Rerank", request, rerank_pb2.RerankResponse, Ranking.from_pb)


def search_and_rerank(
    query: str, index: str | None, k: int | None, options: rerank_pb2.RerankOptions
) -> Call[rerank_pb2.SearchAndRerankResponse, Ranking]:
    """Rerank what an index of the server finds."""
    request = rerank_pb2.SearchAndRerankRequest(query=query, index=index or "", k=k, options=options)
    return Call(f"/{_SERVICE}/SearchAndRerank", request, rerank_pb2.SearchAndRerankResponse, Ranking.from_pb)


def rankers() -> Call[rerank_pb2.ListRankersResponse, Catalog]:
    """List what the server holds."""
    request = rerank_pb2.ListRankersRequest()
    return Call(f"/{_SERVICE}/ListRankers", request, rerank_pb2.ListRankersResponse, Catalog.from_pb)


def options_to_pb(
    *,
    ranker: str | None,
    top_n: int | None,
    max_chunks: int | None,
    return_texts: bool,
    return_chunk_scores: bool,
) -> rerank_pb2.RerankOptions:
    """Put the options on the wire; None leaves a field to the server's default."""
    return rerank_pb2.RerankOptions(
        ranker=ranker or "",
        top_n=top_n,
        max_chunks=max_chunks,
        return_texts=return_texts,
        return_chunk_scores=return_chunk_scores,
    )
