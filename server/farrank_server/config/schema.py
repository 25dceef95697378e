"""The configuration of a server as one frozen tree.

Every value is checked when its dataclass is created, so a tree that exists is valid. `sources` reads it from
a file, the environment and flags.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from farrank_calls.telemetry.config import LoggingConfig, TracingConfig
from farrank_first_stage.config import FirstStageConfig
from farrank_rankers.chunking import WHOLE_DOCUMENT
from farrank_rankers.files.open import Overrides
from farrank_runtimes.runtime import Packing, Precision
from farrank_runtimes.runtime_table import AUTO, RUNTIMES
from farrank_settings.checked import CheckedConfig, above_0, at_least, between, must
from farrank_settings.errors import ConfigError

# Bounds of the time histograms: 1 ms to 10 s, three a decade, and twice as many where latency objectives lie.
MILLISECONDS = (1, 2, 5, 10, 20, 35, 50, 75, 100, 150, 200, 350, 500, 750, 1e3, 1.5e3, 2e3, 3.5e3, 5e3, 1e4)
SECONDS = tuple(each / 1000 for each in MILLISECONDS)


def _is_origin(text: str) -> bool:
    scheme, _, host = text.partition("://")
    return text == "*" or (scheme in ("http", "https") and bool(host) and "/" not in host)


@dataclass(frozen=True, slots=True)
class DepthConfig(CheckedConfig):
    """How much of its documents a ranker reads: all that its limits allow, or adaptive, within one budget.

    An adaptive ranker reads the most promising chunks of whole documents, in rounds. Its budget is the mean
    number of `chunks` of a document, the `tokens` of a call's encoder inputs, or the `milliseconds` from a
    call's arrival; without any the plan of the ranker's spec counts.
    """

    mode: Literal["all", "adaptive"] = "all"
    chunks: float | None = between(1, 10_000, None)
    tokens: int | None = between(1, 2**31, None)
    milliseconds: int | None = between(1, 3_600_000, None)

    def __post_init__(self) -> None:
        """Check that there is at most one budget, and only for adaptive depth."""
        CheckedConfig.__post_init__(self)
        given = [name for name in ("chunks", "tokens", "milliseconds") if getattr(self, name) is not None]
        if given and not self.is_adaptive:
            raise ConfigError(f"{given[0]}: is a budget of adaptive depth, and mode is {self.mode}")
        if len(given) > 1:
            raise ConfigError(f"{given[1]}: is a second budget beside {given[0]}; there can be one")

    @property
    def is_adaptive(self) -> bool:
        """Whether the ranker reads in rounds."""
        return self.mode == "adaptive"


@dataclass(frozen=True, slots=True)
class RankerConfig(CheckedConfig):
    """One ranker to load: its source, its runtime, and changes to its spec (None: as the source says).

    A hub name is looked up only in the local cache, unless `download` is set. `runtime` auto and `precision`
    None choose the fastest that the artifact holds. `export_file` chooses one of a published model's graphs
    by its path in the model's folder (onnx/model_O3.onnx). `packing` is for torch: inputs end to end, or
    padded to the longest; auto packs if a GPU has a fused kernel for it and the backbone has a packed form.
    `template`, `answers` and `instruction` are the prompt of a language model that answers: one text with
    {query}, {document} and perhaps {instruction}; the token that means relevant, and perhaps the one that
    does not; the task. `query_prefix` and `document_prefix` precede a cross-encoder's query and a
    bi-encoder's texts. All of these replace those of the folder. `truncate_dim` is the number of dimensions
    to keep of a bi-encoder's vectors. Calls that ask for no `depth` get this one; None is adaptive for every
    ranker that can be, and all for the others.
    """

    source: str = must("embedded", bool, "a folder, a hub name, 'embedded' or 'embedded:NAME'")
    download: bool = False
    family: str | None = None
    runtime: str = must(AUTO, lambda name: name in (AUTO, *RUNTIMES), " or ".join((AUTO, *RUNTIMES)))
    precision: Precision | None = None
    export_file: str | None = must(None, bool, "a file in the model's folder, such as onnx/model.onnx")
    packing: Packing = "auto"
    max_query_tokens: int | None = at_least(1, None)
    max_document_tokens: int | None = at_least(1, None)
    window: int | None = at_least(1, None)
    stride: int | None = at_least(1, None)
    template: str | None = must(None, bool, "a text with {query} and {document}")
    answers: tuple[str, ...] | None = must(None, lambda each: len(each) in (1, 2), "one or two tokens")
    instruction: str | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    truncate_dim: int | None = at_least(1, None)
    depth: DepthConfig | None = None

    @property
    def overrides(self) -> Overrides:
        """The changes to the ranker's spec, and whether the ranker may be downloaded."""
        return Overrides(
            family=self.family,
            max_query_tokens=self.max_query_tokens,
            max_document_tokens=self.max_document_tokens,
            window=self.window,
            stride=self.stride,
            template=self.template,
            answers=self.answers,
            instruction=self.instruction,
            query_prefix=self.query_prefix,
            document_prefix=self.document_prefix,
            truncate_dim=self.truncate_dim,
            download=self.download,
        )


@dataclass(frozen=True, slots=True)
class DeviceConfig(CheckedConfig):
    """The device of this replica. None: chosen from the machine's devices.

    With `compile`, torch compiles at the start the operations of packed rankers between two attentions. It is
    off because its gain has not been measured yet. A step on the device counts as hung if it takes longer
    than `hang_after_s` and 20 times longer than expected: the server then recovers the device on another
    thread.
    """

    name: str | None = None
    threads: int | None = at_least(1, None)
    compile: bool = False
    hang_after_s: float = above_0(60.0)


@dataclass(frozen=True, slots=True)
class BatchingConfig(CheckedConfig):
    """How the inputs of all requests share the device. None: chosen for the device.

    `max_batch_tokens` limits the padded positions of one batch, `max_padding_ratio` their ratio to the real
    ones, as if the batch were padded as a whole (1.08; 1.2 if the runtime divides batches by length). Lengths
    are grouped among the oldest `window_batches` x `max_batch_tokens` queued tokens.
    """

    max_batch_tokens: int | None = at_least(1, None)
    max_padding_ratio: float | None = at_least(1, None)
    window_batches: int = at_least(1, 32)


@dataclass(frozen=True, slots=True)
class LimitsConfig(CheckedConfig):
    """Limits of one request, and of the server's load.

    A document with more than `max_document_tokens` to read is refused, not cut.
    `max_held_characters` limits the texts of all calls in flight, including parts that are not read. A call
    is admitted if the backlog and the call itself need at most `deadline_margin` of the time to its deadline;
    a call without a deadline gets `default_timeout_s`. `max_unread_bytes` limits the answers that callers
    have not read yet. `max_receiving_bytes` limits the requests that are being received or wait for
    admission. A request may take 10 s to arrive, plus the time for its bytes at `min_receiving_bytes_per_s`.
    `max_ranker_bytes` limits the weights of loaded rankers: those that were loaded by name leave for others,
    the least recently used first.
    """

    max_documents: int = at_least(1, 1000)
    max_document_bytes: int = at_least(1, 16 * 2**20)
    max_document_tokens: int = between(1, WHOLE_DOCUMENT, WHOLE_DOCUMENT)
    max_query_bytes: int = at_least(1, 256 * 2**10)
    max_request_bytes: int = at_least(1, 24 * 2**20)
    max_queued_tokens: int = at_least(1, 4_000_000)
    max_held_characters: int = at_least(1, 256 * 2**20)
    max_concurrent_calls: int = at_least(1, 1000)
    max_unread_bytes: int = at_least(1, 256 * 2**20)
    max_receiving_bytes: int = at_least(1, 512 * 2**20)
    max_ranker_bytes: int | None = at_least(1, None)
    min_receiving_bytes_per_s: int = at_least(1, 2**20)
    default_timeout_s: float = above_0(60.0)
    deadline_margin: float = must(0.85, lambda share: 0 < share <= 1, "above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class TlsConfig(CheckedConfig):
    """Certificates of the listening sockets; with `client_ca`, callers must present one, too (mTLS)."""

    certificate: Path
    private_key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class JudgementsConfig(CheckedConfig):
    """Judged questions of an index, for the page.

    `questions` is a file of an id, a tab and a text in each line, `qrels` a file of TREC's judgements.
    """

    questions: Path
    qrels: Path


@dataclass(frozen=True, slots=True)
class HttpConfig(CheckedConfig):
    """The HTTP endpoint, at `listen.host` and with `listen.tls`. Port 0 takes a free one; None: no HTTP.

    `models` maps model names that clients of other rerankers send by default to the ranker that answers; `*`
    stands for any characters, and case does not matter. An empty ranker name means the default ranker. Any
    other name is refused, or means the default ranker (`unknown_models`), too. Pages of `cors_origins`
    (`https://search.example`, or `*` for all) may call from a browser. `page` serves the endpoint's own page
    at `/`; `judgements` are judged questions for it, by the name of their index.
    """

    port: int | None = between(0, 65535, None)
    cors_origins: tuple[str, ...] = must(
        (), lambda origins: all(map(_is_origin, origins)), "origins such as https://search.example, or *"
    )
    page: bool = True
    judgements: Mapping[str, JudgementsConfig] = field(default_factory=dict)
    models: Mapping[str, str] = field(
        default_factory=lambda: dict.fromkeys(
            (
                *("rerank-*", "*/rerank-*", "cohere-rerank-*", "cohere.rerank-*", "jina-*", "*/jina-*"),
                *("reranker", "default/not-specified"),
            ),
            "",
        )
    )
    unknown_models: Literal["refuse", "default"] = "refuse"


@dataclass(frozen=True, slots=True)
class AdminConfig(CheckedConfig):
    """The operator's endpoint, which changes rankers while they serve (`farrank rankers`).

    Port 0 takes a free one; None: no endpoint. A host that other machines reach needs the `token_file`, whose
    token each call must send. There is no TLS: reach it on loopback, or through `kubectl port-forward`.
    """

    port: int | None = between(0, 65535, None)
    host: str = "127.0.0.1"
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class ListenConfig(CheckedConfig):
    """Where the server listens. Port 0 takes a free one; metrics_port None serves no metrics.

    `keys` is the file of the API keys that callers must send (`farrank keys`); None lets everyone call.
    `metrics_token_file` holds the token that readers of the metrics must send; None lets everyone read them.
    After `max_connection_age_s` a gRPC connection takes no new calls, and an HTTP connection ends with its
    next answer. The caller then connects again, perhaps to a newer replica. None sets no limit.
    """

    host: str = "127.0.0.1"
    port: int = between(0, 65535, 50051)
    metrics_port: int | None = between(0, 65535, 9090)
    metrics_token_file: Path | None = None
    drain_timeout_s: float = at_least(0, 30.0)
    max_connection_age_s: float | None = at_least(1, 300.0)
    tls: TlsConfig | None = None
    keys: Path | None = None
    http: HttpConfig = field(default_factory=HttpConfig)
    admin: AdminConfig = field(default_factory=AdminConfig)


@dataclass(frozen=True, slots=True)
class ObjectiveConfig(CheckedConfig):
    """The latency objective of dashboards and alerts: a `share` of reranking calls ends within `latency_s`.

    The server only publishes it. SIGHUP reads it again. `latency_s` is a bound of the histogram.
    """

    latency_s: float = must(
        5.0, SECONDS.__contains__, f"a bound of the histogram: {', '.join(f'{each:g}' for each in SECONDS)}"
    )
    share: float = must(0.99, lambda share: 0 < share < 1, "above 0 and below 1")


@dataclass(frozen=True, slots=True)
class ServerConfig(CheckedConfig):
    """The whole tree. The first of `rankers` is the default one."""

    rankers: Mapping[str, RankerConfig] = field(
        default_factory=lambda: {"minilm": RankerConfig()},
        metadata={"holds": bool, "allowed": "at least one ranker"},
    )
    listen: ListenConfig = field(default_factory=ListenConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    first_stage: FirstStageConfig = field(default_factory=FirstStageConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    tracing: TracingConfig = field(default_factory=TracingConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    tokenizer_threads: int = at_least(1, 2)
    cache_bytes: int = at_least(0, 256 * 2**20)

    @property
    def default_ranker(self) -> str:
        """The name of the ranker for calls that name none."""
        return next(iter(self.rankers))
