"""The metrics of loaded rankers and of their answers."""

from collections.abc import Callable, Collection, Iterable, Mapping

from farrank_calls.fairness.fair_order import CallPriority
from farrank_server.engine.call import Ended, RerankResult
from farrank_server.engine.loaded.ranker import LoadedRanker, Scorer
from farrank_server.metrics import (
    BATCH_FAILURES,
    CHUNK_STATES,
    CODES,
    METHODS,
    ROLES,
    STAGES,
    Endpoint,
    Metrics,
)


def show_ranker(metrics: Metrics, scorer: Scorer, endpoints: Collection[Endpoint]) -> None:
    """Show a loaded ranker or ensemble and its runtime. Its counters of events start at 0."""
    for each in scorer.members:
        metrics.ranker_info.labels(*_info(each)).set(1)
        metrics.device_busy_seconds.labels(each.capabilities.device)
        by_ranker = (
            *(metrics.batch_pairs, metrics.batch_tokens, metrics.batch_padding_ratio, metrics.batch_seconds),
            *(metrics.real_tokens, metrics.padded_tokens, metrics.encoded_chunks, metrics.reruns),
            *(metrics.document_chunks, metrics.deciding_chunk, metrics.stored_documents),
            metrics.call_rounds,
            *((metrics.cache_hits, metrics.cache_misses) if each.cache is not None else ()),
        )
        for instrument in by_ranker:
            instrument.labels(each.name)
        for stage in STAGES:
            metrics.stage_seconds.labels(each.name, stage)
        for state in CHUNK_STATES:
            metrics.chunks.labels(each.name, state)
        for reason in Ended:
            metrics.ended_early.labels(each.name, reason)
        for side in ("query", "document"):
            metrics.cut_tokens.labels(each.name, side)
        for failure in BATCH_FAILURES:
            metrics.batch_failures.labels(each.name, failure)
    for role in ROLES:
        metrics.version_seconds.labels(scorer.name, role)
        for code in CODES:
            metrics.version_requests.labels(scorer.name, role, code)
    for endpoint in endpoints:
        metrics.begin_calls(endpoint, scorer.name, METHODS, CODES)


def hide_version(metrics: Metrics, ranker: LoadedRanker, loaded: Iterable[LoadedRanker]) -> None:
    """Show a version no longer, unless one that is still loaded looks the same."""
    if _info(ranker) not in map(_info, loaded):
        metrics.ranker_info.remove(*_info(ranker))


def hide_ranker(metrics: Metrics, name: str) -> None:
    """Remove all series of a ranker's name."""
    for instrument in metrics.by_ranker:
        instrument.remove_by_labels({"ranker": name})


def show_comparison(metrics: Metrics, name: str, tau: float, latency_ratio: float) -> None:
    """Show how a ranker's last new version compared on recorded queries."""
    metrics.canary_tau.labels(name).set(tau)
    metrics.canary_latency_ratio.labels(name).set(latency_ratio)


def show_memory(metrics: Metrics, total: Callable[[], int], limit: int | None) -> None:
    """Show the bytes of all loaded weights at each scrape, and their limit if there is one."""
    metrics.ranker_bytes.set_function(total)
    if limit is not None:
        metrics.ranker_bytes_limit.set(limit)


def _info(ranker: LoadedRanker) -> tuple[str, ...]:
    runs = ranker.capabilities
    return ranker.name, ranker.version, ranker.spec.family, runs.runtime, runs.device, runs.precision


def count_answer(
    metrics: Metrics,
    ranker: LoadedRanker,
    result: RerankResult,
    priority: CallPriority,
    exemplar: Mapping[str, str] | None = None,
) -> None:
    """Count one ranker's answer to a call. `exemplar` holds labels that lead to the call."""
    leads = dict(exemplar or {})
    name, tally = ranker.name, result.tally
    if ranker.cache is not None:
        metrics.cache_hits.labels(name).inc(tally.cached_chunks)
        metrics.cache_misses.labels(name).inc(tally.chunks - tally.cached_chunks - tally.stored_chunks)
    metrics.stored_documents.labels(name).inc(tally.stored_documents)
    metrics.cut_tokens.labels(name, "query").inc(tally.query_tokens_cut)
    metrics.cut_tokens.labels(name, "document").inc(sum(each.cut.tokens for each in result.documents))
    chunks, deciding = metrics.document_chunks.labels(name), metrics.deciding_chunk.labels(name)
    states, stride = [metrics.chunks.labels(name, each) for each in CHUNK_STATES], ranker.spec.chunking.stride
    for document in result.documents:
        read = len(document.spans)
        of_state = read, max(0, document.chunks_scored - read), document.cut.chunks(stride)
        for state, count in zip(states, of_state, strict=True):
            state.inc(count)
        chunks.observe(read)
        deciding.observe(document.deciding_number + 1)
    metrics.call_rounds.labels(name).observe(result.rounds)
    if result.ended is not None:
        metrics.ended_early.labels(name, result.ended).inc()
    metrics.priority_queue_seconds.labels(priority.name.lower()).observe(tally.queue_ns / 1e9)
    for stage in STAGES:
        if stage != "selection" or tally.selection_ns:
            metrics.stage_seconds.labels(name, stage).observe(getattr(tally, f"{stage}_ns") / 1e9, leads)
