"""A server's catalog: its rankers, its indexes and the limits it enforces."""

from collections.abc import Mapping
from dataclasses import dataclass

from farrank.v1 import rerank_pb2 as pb
from farrank_client.ranking import FromWire, WireEnum


@dataclass(frozen=True, slots=True)
class Parity(FromWire):
    """Differences of an export's scores from those of its ranker in PyTorch and fp32.

    `spread` is the standard deviation of the scores within a query; `kendall_tau` and `top10_overlap` are
    means over the queries. `texts` and `queries` count what was measured.
    """

    max_difference: float
    mean_difference: float
    kendall_tau: float
    top10_overlap: float
    texts: int
    queries: int
    spread: float


class DepthMode(WireEnum):
    """The way in which a ranker reads documents."""

    UNSPECIFIED = pb.DEPTH_MODE_UNSPECIFIED
    """Not set."""
    ALL = pb.DEPTH_MODE_ALL
    """All that the ranker's limits allow."""
    ADAPTIVE = pb.DEPTH_MODE_ADAPTIVE
    """The most promising chunks of whole documents."""


@dataclass(frozen=True, slots=True)
class Depth(FromWire):
    """How much of each document a ranker reads, with the budget of adaptive depth.

    At most one of `chunks` (the mean number of a document), `tokens` (of a call) and `milliseconds` (from a
    call's arrival) is set; without any the ranker's plan counts.
    """

    mode: DepthMode
    chunks: float | None = None
    tokens: int | None = None
    milliseconds: int | None = None


@dataclass(frozen=True, slots=True)
class RankerInfo(FromWire):
    """One ranker: its limits in tokens, its runtime and the reason for it, and its family's own options.

    `parity` is None if torch serves the ranker itself, or if a published export was not measured. `depth`
    counts for calls that set none; it is None for an ensemble whose members differ, and from an older server.
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
    depth: Depth | None = None


@dataclass(frozen=True, slots=True)
class IndexInfo(FromWire):
    """One index: its number of documents, its first stage, and the number of documents reranked by default.

    `kind` is the kind of the first stage; `members` are the indexes whose rankings a fusion merges.
    `tokens_for` and `encodings_for` name the rankers that read tokens or encodings stored with the index.
    `generation` counts the changes since it was built.
    """

    name: str
    documents: int
    first_stage: str
    default_k: int = 0
    kind: str = ""
    members: tuple[str, ...] = ()
    tokens_for: tuple[str, ...] = ()
    encodings_for: tuple[str, ...] = ()
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Limits(FromWire):
    """Limits of one request; beyond them the server answers `InvalidArgument`."""

    max_documents: int
    max_document_bytes: int
    max_query_bytes: int
    max_request_bytes: int
    max_queued_tokens: int
    max_query_terms: int = 0
    max_document_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Catalog(FromWire):
    """The rankers, the default one first, the indexes and the limits."""

    rankers: tuple[RankerInfo, ...]
    indexes: tuple[IndexInfo, ...]
    limits: Limits
