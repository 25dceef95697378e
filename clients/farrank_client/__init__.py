"""The thin client of Farrank: rerank long documents from any application, with threads or asyncio.

with Client("localhost:50051") as client:
    ranking = client.rerank("who wrote it?", [Document("a", text_a), Document("b", text_b)])
    best = ranking.results[0]
"""

from farrank_client.calls import AdaptiveDepth, Document, RerankOptions
from farrank_client.catalog import Catalog, Depth, DepthMode, IndexInfo, Limits, Parity, RankerInfo
from farrank_client.client import AsyncClient, Client
from farrank_client.errors import (
    AccessDenied,
    DeadlineExceeded,
    FailedPrecondition,
    FarrankError,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from farrank_client.ranking import (
    ContextPiece,
    Evidence,
    FirstStageScore,
    Passage,
    Priority,
    RankerVersion,
    Ranking,
    Result,
    ScoreScale,
    Sentence,
    Timings,
    TokenMatch,
    Usage,
)
from farrank_client.retry import RetryPolicy
from farrank_client.testing import MockTransport
from farrank_client.transport import AsyncTransport, Tls, Transport

__all__ = [
    "AccessDenied",
    "AdaptiveDepth",
    "AsyncClient",
    "AsyncTransport",
    "Catalog",
    "Client",
    "ContextPiece",
    "DeadlineExceeded",
    "Depth",
    "DepthMode",
    "Document",
    "Evidence",
    "FailedPrecondition",
    "FarrankError",
    "FirstStageScore",
    "IndexInfo",
    "Internal",
    "InvalidArgument",
    "Limits",
    "MockTransport",
    "NotFound",
    "Parity",
    "Passage",
    "Priority",
    "RankerInfo",
    "RankerVersion",
    "Ranking",
    "RerankOptions",
    "ResourceExhausted",
    "Result",
    "RetryPolicy",
    "ScoreScale",
    "Sentence",
    "Timings",
    "Tls",
    "TokenMatch",
    "Transport",
    "Unavailable",
    "Unimplemented",
    "Usage",
]
