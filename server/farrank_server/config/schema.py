"""What a server is told at its start, as one frozen tree.

Every value is checked when its dataclass is made: a tree that exists is a tree that holds. Reading it
from a file, the environment and flags is `config_sources`' subject.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from farrank_runtimes.runtime import Packing, Precision, RuntimeChoice
from farrank_server.errors import ConfigError


def _check(holds: bool, key: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"{key}: {value!r} is not allowed; it must be {allowed}")


@dataclass(frozen=True, slots=True)
class Rm3Config:
    """Pseudo-relevance feedback with a relevance model (Abdul-Jaleel et al., TREC 2004)."""

    feedback_terms: int = 10
    feedback_documents: int = 10
    original_query_weight: float = 0.5

    def __post_init__(self) -> None:
        _check(self.feedback_terms >= 1, "rm3.feedback_terms", self.feedback_terms, "at least 1")
        _check(self.feedback_documents >= 1, "rm3.feedback_documents", self.feedback_documents, "at least 1")
        weight = self.original_query_weight
        _check(0 <= weight <= 1, "rm3.original_query_weight", weight, "between 0 and 1")


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """One Lucene index of the first stage, and how it ranks (BM25 with Anserini's defaults)."""

    path: Path
    k1: float = 0.9
    b: float = 0.4
    rm3: Rm3Config | None = None

    def __post_init__(self) -> None:
        _check(self.k1 >= 0, "index.k1", self.k1, "0 or more")
        _check(0 <= self.b <= 1, "index.b", self.b, "between 0 and 1")


@dataclass(frozen=True, slots=True)
class FirstStageConfig:
    """Where candidates come from when a caller brings none."""

    indexes: Mapping[str, IndexConfig] = field(default_factory=dict)
    default_k: int = 100
    search_threads: int = 2
    start_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        _check(self.default_k >= 1, "first_stage.default_k", self.default_k, "at least 1")
        _check(self.search_threads >= 1, "first_stage.search_threads", self.search_threads, "at least 1")
        _check(self.start_timeout_s > 0, "first_stage.start_timeout_s", self.start_timeout_s, "above 0")


@dataclass(frozen=True, slots=True)
class RankerConfig:
    """One ranker to load: where from, what runs it, what to change of its spec (None: as the source says).

    A hub name is looked up in the local cache alone unless `download` is set. `runtime` auto and `precision`
    None take the fastest of what the artifact holds. `packing` is torch's: inputs end to end or padded to the
    longest; auto packs where a GPU has a fused kernel for it and the backbone a packed form.
    """

    source: str = "embedded"
    download: bool = False
    family: str | None = None
    runtime: RuntimeChoice = "auto"
    precision: Precision | None = None
    packing: Packing = "auto"
    max_query_tokens: int | None = None
    max_document_tokens: int | None = None
    window: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        _check(bool(self.source), "ranker.source", self.source, "a folder, a hub name or 'embedded'")
        runtimes, precisions = get_args(RuntimeChoice), get_args(Precision)
        _check(self.runtime in runtimes, "ranker.runtime", self.runtime, " or ".join(runtimes))
        allowed = self.precision is None or self.precision in precisions
        _check(allowed, "ranker.precision", self.precision, " or ".join(precisions))
        packings = get_args(Packing)
        _check(self.packing in packings, "ranker.packing", self.packing, " or ".join(packings))
        for name in ("max_query_tokens", "max_document_tokens", "window", "stride"):
            value = getattr(self, name)
            _check(value is None or value >= 1, f"ranker.{name}", value, "at least 1")


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """The device that this replica owns. None: chosen from what the machine has.

    With `compile` torch compiles, at the start, what packed rankers do between one attention and the next. It
    is off because nobody has measured yet what it gains.
    """

    name: str | None = None
    threads: int | None = None
    compile: bool = False

    def __post_init__(self) -> None:
        _check(self.threads is None or self.threads >= 1, "device.threads", self.threads, "at least 1")


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """How pairs of all requests share the device. None: chosen for the device.

    `max_batch_tokens` bounds the padded positions of one batch; `max_padding_ratio` the padded over the
    real ones; lengths are grouped among the oldest `window_batches` × `max_batch_tokens` queued tokens.
    """

    max_batch_tokens: int | None = None
    max_padding_ratio: float = 1.08
    window_batches: int = 8

    def __post_init__(self) -> None:
        tokens = self.max_batch_tokens
        _check(tokens is None or tokens >= 1, "batching.max_batch_tokens", tokens, "at least 1")
        _check(
            self.max_padding_ratio >= 1, "batching.max_padding_ratio", self.max_padding_ratio, "at least 1.0"
        )
        _check(self.window_batches >= 1, "batching.window_batches", self.window_batches, "at least 1")


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """What one request may hold, and what the server holds at once.

    `max_held_characters` bounds the texts of all calls in flight, however little of them is read. A call is
    admitted while the backlog and the call itself need at most `deadline_margin` of the time to
    its deadline; one without a deadline gets `default_timeout_s`.
    """

    max_documents: int = 1000
    max_document_bytes: int = 16 * 2**20
    max_query_bytes: int = 256 * 2**10
    max_request_bytes: int = 64 * 2**20
    max_queued_tokens: int = 2_000_000
    max_held_characters: int = 256 * 2**20
    max_concurrent_calls: int = 1000
    default_timeout_s: float = 60.0
    deadline_margin: float = 0.85

    def __post_init__(self) -> None:
        _check(0 < self.deadline_margin <= 1, "limits.deadline_margin", self.deadline_margin, "in (0, 1]")
        for name in ("max_documents", "max_document_bytes", "max_query_bytes", "max_request_bytes"):
            _check(getattr(self, name) >= 1, f"limits.{name}", getattr(self, name), "at least 1")
        for name in ("max_queued_tokens", "max_held_characters", "max_concurrent_calls"):
            _check(getattr(self, name) >= 1, f"limits.{name}", getattr(self, name), "at least 1")
        _check(self.default_timeout_s > 0, "limits.default_timeout_s", self.default_timeout_s, "above 0")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Certificates of the listening socket; with `client_ca` callers must show one, too (mTLS)."""

    certificate: Path
    private_key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ListenConfig:
    """Where the server listens. Port 0 takes a free one; metrics_port None serves no metrics."""

    host: str = "127.0.0.1"
    port: int = 50051
    metrics_port: int | None = 9090
    drain_timeout_s: float = 30.0
    tls: TlsConfig | None = None

    def __post_init__(self) -> None:
        _check(0 <= self.port <= 65535, "listen.port", self.port, "between 0 and 65535")
        metrics = self.metrics_port
        _check(metrics is None or 0 <= metrics <= 65535, "listen.metrics_port", metrics, "0 to 65535")
        _check(self.drain_timeout_s >= 0, "listen.drain_timeout_s", self.drain_timeout_s, "0 or more")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The whole tree. The first of `rankers` is the default one."""

    rankers: Mapping[str, RankerConfig] = field(default_factory=lambda: {"minilm": RankerConfig()})
    listen: ListenConfig = field(default_factory=ListenConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    first_stage: FirstStageConfig = field(default_factory=FirstStageConfig)
    tokenizer_threads: int = 2
    cache_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        _check(bool(self.rankers), "rankers", dict(self.rankers), "at least one ranker")
        _check(self.tokenizer_threads >= 1, "tokenizer_threads", self.tokenizer_threads, "at least 1")
        _check(self.cache_bytes >= 0, "cache_bytes", self.cache_bytes, "0 or more")

    @property
    def default_ranker(self) -> str:
        """Who answers a call that names no ranker."""
        return next(iter(self.rankers))
