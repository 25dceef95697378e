"""What a server holds: its rankers, its indexes and the limits it enforces."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from farrank.v1 import rerank_pb2
from farrank_client.ranking import FlatMessage


@dataclass(frozen=True, slots=True)
class Parity(FlatMessage):
    """How an export's scores differ from those of its ranker in PyTorch and fp32, measured on `texts`.

    `spread` is the standard deviation of the scores within a query; `kendall_tau` and `top10_overlap` are
    means over the queries.
    """

    max_difference: float
    mean_difference: float
    kendall_tau: float
    top10_overlap: float
    texts: int
    queries: int
    spread: float


@dataclass(frozen=True, slots=True)
class RankerInfo:
    """One ranker: how it reads documents (in tokens), what runs it and why, and its family's own options.

    `parity` is None where the ranker itself is served and no export of it.
    """

    name: str
    version: str
    family: str
    backbone: str
    max_query_tokens: int
    max_document_tokens: int
    window: int
    stride: int
    runtime: str
    device: str
    precision: str
    options: Mapping[str, str]
    runtime_reason: str = ""
    parity: Parity | None = None

    @classmethod
    def from_pb(cls, message: rerank_pb2.RankerInfo) -> Self:
        """Read a ranker's description off the wire."""
        values = {each.name: getattr(message, each.name) for each in fields(cls)}
        parity = Parity.from_pb(message.parity) if message.HasField("parity") else None
        return cls(**values | {"options": dict(message.options), "parity": parity})


@dataclass(frozen=True, slots=True)
class IndexInfo(FlatMessage):
    """One index: how many documents it holds, how they are ranked, and how many are reranked by default."""

    name: str
    documents: int
    first_stage: str
    default_k: int = 0


@dataclass(frozen=True, slots=True)
class Limits(FlatMessage):
    """What one request may hold; beyond it the server answers `InvalidArgument`."""

    max_documents: int
    max_document_bytes: int
    max_query_bytes: int
    max_request_bytes: int
    max_queued_tokens: int
    max_query_terms: int = 0


@dataclass(frozen=True, slots=True)
class Catalog:
    """The rankers, the default one first, the indexes and the limits."""

    rankers: tuple[RankerInfo, ...]
    indexes: tuple[IndexInfo, ...]
    limits: Limits

    @classmethod
    def from_pb(cls, message: rerank_pb2.ListRankersResponse) -> Self:
        """Read the whole listing off the wire."""
        return cls(
            rankers=tuple(map(RankerInfo.from_pb, message.rankers)),
            indexes=tuple(map(IndexInfo.from_pb, message.indexes)),
            limits=Limits.from_pb(message.limits),
        )
