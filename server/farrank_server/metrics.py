"""The metrics for Prometheus: one attribute per instrument, base units in the names."""

import platform
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from importlib import metadata
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from farrank_calls.errors import DroppedAt, FarrankError, RateExceeded, Reason, Unauthenticated
from farrank_calls.fairness.fair_order import CallPriority
from farrank_calls.telemetry.log_output import dropped_lines
from farrank_runtimes.runtime_table import installed_version
from farrank_server.config.schema import SECONDS, LimitsConfig, ObjectiveConfig

Buckets = tuple[float, ...]
Instrument = TypeVar("Instrument", bound=MetricWrapperBase)

TOKENS = (64, 128, 256, 512, 768, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
PAIRS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CHUNKS = (1, 2, 3, 4, 6, 8, 11, 14, 20, 30, 50, 100, 200, 500, 1000, 5000)
ROUNDS = (1, 2, 3)
RATIO = (1.0, 1.01, 1.02, 1.04, 1.06, 1.08, 1.1, 1.2, 1.5, 2.0)

# Counters and histograms with these labels are shown from the start, at 0. Prometheus never sees the increase
# of a series that begins with its first event, and an autoscaler cannot use a missing series.
METHODS = ("Rerank", "SearchAndRerank")
_CODES = ("OK", "CANCELLED", *(error.code.name for error in FarrankError.__subclasses__()))
# The server does not read which ranker a call without a key asks for.
CODES = tuple(code for code in _CODES if code != Unauthenticated.code.name)
BATCH_FAILURES = ("out_of_memory", "not_finite", "error")
STAGES = ("tokenization", "queue", "inference", "aggregation", "selection")
CHUNK_STATES = ("read", "scored", "cut")
ROLES = ("serving", "canary")

# The runtimes whose installed version `build_info` shows.
LIBRARIES = ("torch", "onnx", "openvino", "tensorrt")


class Endpoint(StrEnum):
    """The endpoints that receive calls.

    In metrics, logs and traces the label is `door`: dashboards and alerts of users depend on it.
    """

    GRPC = "grpc"
    HTTP = "http"


class Metrics:
    """The instruments of one server, in a registry of their own (several servers may share a process)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # process_*: memory, CPU time, open files, start time
        self.registry.register(_LogLines())

        # The instruments whose series end when a ranker is unloaded.
        self.by_ranker: list[MetricWrapperBase] = []

        def noted(instrument: Instrument, labels: str) -> Instrument:
            if "ranker" in labels.split():
                self.by_ranker.append(instrument)
            return instrument

        def gauge(name: str, text: str, labels: str = "ranker") -> Gauge:
            return noted(Gauge(f"farrank_{name}", text, labels.split(), registry=self.registry), labels)

        def counter(name: str, text: str, labels: str = "ranker") -> Counter:
            return noted(Counter(f"farrank_{name}", text, labels.split(), registry=self.registry), labels)

        def histogram(name: str, text: str, labels: str = "ranker", buckets: Buckets = SECONDS) -> Histogram:
            made = Histogram(f"farrank_{name}", text, labels.split(), buckets=buckets, registry=self.registry)
            return noted(made, labels)

        self.requests = counter("requests_total", "Calls that ended, by gRPC code", "door method ranker code")
        self.request_seconds = histogram(
            "request_duration_seconds", "From a call's arrival to its end", "door method ranker"
        )
        self.objective = gauge(
            "latency_objective_ratio", "The share of calls that rerank to end within a bound", "le"
        )
        self.in_flight = gauge("requests_in_flight", "Calls being answered now", "door method")
        self.calls_limit = gauge("requests_in_flight_limit", "Calls that may be answered at once", "")
        self.rejections = counter(
            "rejections_total",
            "Calls refused or given up for lack of room, time or device",
            "door ranker reason",
        )
        self.deadline_drops = counter(
            "deadline_drops_total", "Calls dropped late, by the stage that noticed", "door ranker stage"
        )
        self.unread_bytes = gauge("unread_answer_bytes", "Answers that callers have not read yet", "")
        self.unread_limit = gauge("unread_answer_bytes_limit", "Limit on the bytes of unread answers", "")
        self.receiving_bytes = gauge("receiving_bytes", "Bytes reserved for requests in receipt", "")
        self.receiving_limit = gauge(
            "receiving_bytes_limit", "Limit on the bytes reserved for requests in receipt", ""
        )
        self.receiving_waiting = gauge("receiving_waiting", "Requests that wait for room to be received", "")
        self.unread_answers = gauge("unread_answers", "Answers, and refusals, that callers have not read", "")
        self.open_calls = gauge(
            "open_calls", "Open calls, from their start until their answer was read", "kind"
        )
        self.open_calls_limit = gauge("open_calls_limit", "Limit on open calls", "kind")
        self.open_calls_refused = counter(
            "open_calls_refused_total", "Calls refused because too many are open", "kind"
        )
        self.not_received = counter(
            "requests_not_received_total", "Calls that ended before their request was received", "why"
        )
        for why in ("empty", "cancelled", "late", "receiving"):
            self.not_received.labels(why)
        self.http_connections = gauge("http_connections", "HTTP connections that are open", "")
        self.http_connections_limit = gauge("http_connections_limit", "HTTP connections that may be open", "")
        self.http_connections_ended = counter(
            "http_connections_ended_total", "HTTP connections ended or refused because of a limit", "why"
        )
        for why in ("handshake", "headers", "malformed", "room", "refused", "files"):
            self.http_connections_ended.labels(why)
        self.grpc_connections_ended = counter(
            "grpc_connections_ended_total", "gRPC connections ended because few files were left", ""
        )
        self.unread_ended = counter(
            "unread_connections_ended_total",
            "Connections ended because of an answer that was not read",
            "door",
        )
        self.cancellations = counter("cancellations_total", "Calls whose caller disconnected", "door ranker")

        self.key_requests = counter("key_requests_total", "Calls that ended, by key", "key code")
        self.key_tokens = counter("key_tokens_total", "Tokens of answered calls, by key", "key")
        self.key_rejections = counter(
            "key_rejections_total", "Calls refused because of a key's rate or share", "key limit"
        )
        self.key_expiry = gauge("key_expiry_timestamp_seconds", "When a key expires, in Unix time", "key")
        self.key_reloads = counter("key_reloads_total", "Reloads of the API keys, by outcome", "outcome")
        self.unauthenticated = counter("unauthenticated_total", "Calls without a valid key", "door why")

        self.priority_queue_seconds = histogram(
            "priority_queue_duration_seconds", "Time that answered calls waited for the device", "priority"
        )
        self.priority_tokens = gauge(
            "priority_admitted_tokens", "Tokens admitted and not yet encoded, by priority", "priority"
        )
        for priority in CallPriority:
            self.priority_queue_seconds.labels(priority.name.lower())

        self.stage_seconds = histogram(
            "stage_duration_seconds", "Time that an answered call spent in a stage", "ranker stage"
        )
        self.first_stage_seconds = histogram(
            "first_stage_duration_seconds", "Searching an index and reading the texts", "index"
        )
        self.stored_for = gauge(
            "index_store_read",
            "1 if a ranker reads an index's stored tokens or encodings, 0 if it reads texts",
            "index ranker store",
        )
        self.index_generation = gauge(
            "index_generation", "How often documents were added or deleted since an index was built", "index"
        )
        self.search_process_down = gauge(
            "search_process_down", "1 while the process that searches Lucene indexes is down", ""
        )
        self.search_process_ends = counter(
            "search_process_ends_total", "Ends of the search process, by reason", "reason"
        )
        for reason in ("ended", "hung", "heap_full"):
            self.search_process_ends.labels(reason)
        self.ranker_swaps = counter(
            "ranker_swaps_total", "Rankers replaced while serving, by outcome", "ranker outcome"
        )
        self.version_requests = counter(
            "version_requests_total",
            "Calls that ended, by whether the version that serves or a canary answered",
            "ranker role code",
        )
        self.version_seconds = histogram(
            "version_duration_seconds",
            "From a call's arrival to its end, by whether the version that serves or a canary answered",
            "ranker role",
        )
        self.canary_share = gauge("canary_share_ratio", "Share of a ranker's calls that its canary gets")
        self.canary_tau = gauge(
            "canary_kendall_tau", "Mean rank correlation of a ranker's last new version on recorded queries"
        )
        self.canary_latency_ratio = gauge(
            "canary_latency_ratio", "Median latency of a ranker's last new version over the old one's"
        )
        self.ranker_bytes = gauge("ranker_weight_bytes", "Bytes of the weights of all loaded versions", "")
        self.ranker_bytes_limit = gauge(
            "ranker_weight_bytes_limit", "Limit on the bytes of weights; 0 without one", ""
        )
        self.reloads = counter("index_reloads_total", "Reloads of the indexes, by outcome", "outcome")
        for outcome in ("done", "failed"):
            self.reloads.labels(outcome)
        self.stored_documents = counter(
            "stored_documents_total", "Documents read from an index's stores instead of tokenized"
        )
        self.queue_tokens = gauge("queue_tokens", "Tokens that wait for the device")
        self.queue_age_seconds = gauge("queue_age_seconds", "Wait of the input that is due first")
        self.admitted_tokens = gauge("admitted_tokens", "Tokens admitted and not yet encoded")
        self.tokens_limit = gauge("admitted_tokens_limit", "Tokens that may be admitted at once", "")
        self.held_characters = gauge("held_characters", "Characters that calls in flight hold", "")
        self.characters_limit = gauge("held_characters_limit", "Characters that calls in flight may hold", "")

        self.batch_pairs = histogram("batch_pairs", "Encoder inputs of a batch", buckets=PAIRS)
        self.batch_tokens = histogram("batch_tokens", "Padded tokens of a batch", buckets=TOKENS)
        self.batch_padding_ratio = histogram(
            "batch_padding_ratio", "Padded tokens over real ones of a batch", buckets=RATIO
        )
        self.batch_seconds = histogram("batch_duration_seconds", "Time of a batch on the device")
        self.batch_failures = counter(
            "batch_failures_total", "Batches that failed and were split or given up", "ranker reason"
        )
        self.real_tokens = counter("encoded_tokens_total", "Real tokens that the device encoded")
        self.padded_tokens = counter("padded_tokens_total", "Positions that the device computed")
        self.encoded_chunks = counter("encoded_chunks_total", "Chunks that the device encoded")
        self.device_busy_seconds = counter(
            "device_busy_seconds_total", "Time for which the device was busy", "device"
        )
        self.measured_speed = gauge(
            "device_tokens_per_second", "Measured speed of the device, which admission uses"
        )
        self.device_state = gauge("device_state", "1 for the current state of the device", "state")
        self.worker_restarts = counter("worker_restarts_total", "Restarts of the device", "")
        self.tokenizer_hangs = counter(
            "tokenizer_hangs_total", "Tokenizer threads that hung and were replaced", ""
        )
        self.reruns = counter("reruns_total", "Calls that were run again after a failure of the device")

        self.document_chunks = histogram(
            "document_chunks", "Chunks that were read of a document", buckets=CHUNKS
        )
        self.chunks = counter(
            "chunks_total", "Chunks of answered documents: read, scored and not read, or cut", "ranker state"
        )
        self.deciding_chunk = histogram(
            "deciding_chunk_number", "Number of the deciding chunk, counted from 1", buckets=CHUNKS
        )
        self.call_rounds = histogram("call_rounds", "Rounds in which a call was read", buckets=ROUNDS)
        self.ended_early = counter(
            "ended_early_total", "Calls answered with a round before their last one", "ranker reason"
        )
        self.cut_tokens = counter(
            "cut_tokens_total", "Tokens beyond a limit, which were not read", "ranker side"
        )
        self.cache_hits = counter("cache_hits_total", "Chunks whose encoding was cached")
        self.cache_misses = counter("cache_misses_total", "Chunks that had to be encoded")
        self.cache_bytes = gauge("cache_bytes", "Bytes in the document cache", "")
        self.cache_limit = gauge("cache_bytes_limit", "Limit on the bytes in the document cache", "")

        self.ranker_info = gauge(
            "ranker_info", "A loaded ranker; always 1", "ranker version family runtime device precision"
        )
        build = gauge(
            "build_info",
            "Versions of Farrank and its libraries; always 1",
            f"version python {' '.join(LIBRARIES)}",
        )
        libraries = [installed_version(name) or "" for name in LIBRARIES]
        build.labels(metadata.version("farrank"), platform.python_version(), *libraries).set(1)

    def show_endpoints(self, endpoints: Collection[Endpoint]) -> None:
        """Start the counters, at 0, of these endpoints' calls that name no ranker or an unknown one."""
        about = {Endpoint.GRPC: "ListRankers", Endpoint.HTTP: "Info"}
        for endpoint in endpoints:
            self.unread_ended.labels(endpoint)
            self.begin_calls(endpoint, "", (*METHODS, about[endpoint]), _CODES)
            self.begin_calls(endpoint, "unknown", METHODS, CODES)

    def begin_calls(
        self, endpoint: Endpoint, ranker: str, methods: Sequence[str], codes: Sequence[str]
    ) -> None:
        """Start the counters, at 0, of an endpoint's calls of a ranker."""
        for method in methods:
            self.request_seconds.labels(endpoint, method, ranker)
            for code in codes:
                self.requests.labels(endpoint, method, ranker, code)
        for reason in Reason:
            self.rejections.labels(endpoint, ranker, reason)
        for dropped_at in DroppedAt:
            self.deadline_drops.labels(endpoint, ranker, dropped_at)
        self.cancellations.labels(endpoint, ranker)

    def show_objective(self, objective: ObjectiveConfig) -> None:
        """Show the latency objective of dashboards and alerts, with the bound as the histogram formats it."""
        self.objective.clear()
        bound: str = floatToGoString(objective.latency_s)  # type: ignore[no-untyped-call]
        self.objective.labels(bound).set(objective.share)

    def show_key(self, name: str, ends_at_s: float | None) -> None:
        """Show a key by its name. Its counters start at 0."""
        for code in _CODES:
            self.key_requests.labels(name, code)
        for limit in (*RateExceeded.LIMITS, Reason.SHARE):
            self.key_rejections.labels(name, limit)
        self.key_tokens.labels(name)
        if ends_at_s is not None:
            self.key_expiry.labels(name).set(ends_at_s)

    def show_access(self, endpoints: Collection[Endpoint]) -> None:
        """Show that these endpoints require keys. The counters of key errors and reloads start at 0."""
        for endpoint, why in product(endpoints, Unauthenticated.WHYS):
            self.unauthenticated.labels(endpoint, why)
        for outcome in ("done", "failed"):
            self.key_reloads.labels(outcome)

    def show_limits(self, limits: LimitsConfig, cache_bytes: int) -> None:
        """Show the limits, so that usage can be read as a share of them."""
        self.calls_limit.set(limits.max_concurrent_calls)
        self.tokens_limit.set(limits.max_queued_tokens)
        self.characters_limit.set(limits.max_held_characters)
        self.unread_limit.set(limits.max_unread_bytes)
        self.receiving_limit.set(limits.max_receiving_bytes)
        self.cache_limit.set(cache_bytes)

    def count_batch(
        self, ranker: str, pairs: int, chunks: int, real: int, padded: int, seconds: float
    ) -> None:
        """Count one batch that the device encoded."""
        self.batch_pairs.labels(ranker).observe(pairs)
        self.batch_tokens.labels(ranker).observe(padded)
        self.batch_padding_ratio.labels(ranker).observe(padded / real)
        self.batch_seconds.labels(ranker).observe(seconds)
        self.real_tokens.labels(ranker).inc(real)
        self.padded_tokens.labels(ranker).inc(padded)
        self.encoded_chunks.labels(ranker).inc(chunks)


class _LogLines(Collector):
    """The dropped lines of the log, for the whole process and so the same on each of its servers."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Read the current counts."""
        lines = CounterMetricFamily(
            "farrank_log_lines_dropped", "Lines of the log that were not written", labels=["reason"]
        )
        for reason, count in dropped_lines.items():
            lines.add_metric([reason], count)
        yield lines
