"""What a server holds: its rankers, its indexes and the limits it enforces."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from farrank.v1 import rerank_pb2


@dataclass(frozen=True, slots=True)
class Parity:
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

    @classmethod
    def from_pb(cls, message: rerank_pb2.Parity) -> Self:
        """Read a report off the wire."""
        return cls(
            message.max_difference,
            message.mean_difference,
            message.kendall_tau,
            message.top10_overlap,
            message.texts,
            message.queries,
            message.spread,
        )


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
        return cls(
            name=message.name,
            version=message.version,
            family=message.family,
            backbone=message.backbone,
            max_query_tokens=message.max_query_tokens,
            max_document_tokens=message.max_document_tokens,
            window=message.window,
            stride=message.stride,
            runtime=message.runtime,
            device=message.device,
            precision=message.precision,
            options=dict(message.options),
            runtime_reason=message.runtime_reason,
            parity=Parity.from_pb(message.parity) if message.HasField("parity") else None,
        )


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """One index of the first stage, how many documents it holds and how it ranks them."""

    name: str
    documents: int
    first_stage: str

    @classmethod
    def from_pb(cls, message: rerank_pb2.IndexInfo) -> Self:
        """Read an index's description off the wire."""
        return cls(message.name, message.documents, message.first_stage)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may hold; beyond it the server answers `InvalidArgument`."""

    max_documents: int
    max_document_bytes: int
    max_query_bytes: int
    max_request_bytes: int
    max_queued_tokens: int

    @classmethod
    def from_pb(cls, message: rerank_pb2.Limits) -> Self:
        """Read the limits off the wire."""
        return cls(
            max_documents=message.max_documents,
            max_document_bytes=message.max_document_bytes,
            max_query_bytes=message.max_query_bytes,
            max_request_bytes=message.max_request_bytes,
            max_queued_tokens=message.max_queued_tokens,
        )


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
