"""The dashboards of what happens inside: the first stage, long documents, batching, the device."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from farrank_dashboards.panels import (
    INSTANCES,
    RANKERS,
    Panel,
    Query,
    Section,
    framed,
    increase,
    lines,
    mean,
    now,
    number,
    per_second,
    percentile,
    percentiles,
    share,
    spread,
)

SEARCH = "farrank_first_stage_duration_seconds"
SEARCHES = f'{RANKERS}, method="SearchAndRerank"'


def first_stage() -> Dashboard:
    """Show how fast searching is, and whether its process lives."""
    return framed(
        "farrank-first-stage",
        "First stage",
        "How many searches, how fast, for which index, and does the searching process live?",
        Section("Searches", _searches()),
        Section("Calls that search", _searching_calls()),
    )


def _searches() -> tuple[Panel, ...]:
    return (
        lines(
            "Searches by index",
            "Searches that found their candidates and read the texts.",
            "reqps",
            Query(per_second(f"{SEARCH}_count", "index", where=INSTANCES), "{{index}}"),
            stacked=True,
        ),
        lines(
            "Time of a search",
            "Over all indexes, reading the texts included.",
            "s",
            *percentiles(SEARCH, where=INSTANCES),
        ),
        lines(
            "95th percentile by index",
            "Larger indexes, RM3 and larger k take longer.",
            "s",
            Query(percentile(0.95, SEARCH, "index", where=INSTANCES), "{{index}}"),
        ),
        spread("Time of a search, spread", "How many searches took how long.", "s", SEARCH, where=INSTANCES),
    )


def _searching_calls() -> tuple[Panel, ...]:
    duration = "farrank_request_duration_seconds"
    failures = f'{RANKERS}, reason=~"first_stage_down|first_stage_memory"'
    late = f'{RANKERS}, stage="first_stage"'
    return (
        lines(
            "Calls by code",
            "What calls that search end with.",
            "reqps",
            Query(per_second("farrank_requests_total", "code", where=SEARCHES), "{{code}}"),
            stacked=True,
        ),
        lines(
            "Share of a call's time",
            "The mean search over the mean call that searches, all rankers together.",
            "percentunit",
            Query(
                share(
                    per_second(f"{SEARCH}_sum", where=INSTANCES),
                    per_second(f"{duration}_sum", where=f'{INSTANCES}, method="SearchAndRerank"'),
                ),
                "search",
            ),
            maximum=1,
        ),
        lines(
            "Mean call that searches",
            "By ranker, search included.",
            "s",
            Query(mean(duration, "ranker", where=SEARCHES), "{{ranker}}"),
        ),
        lines(
            "Searches that failed",
            "first_stage_down: the process of the JVM died and restarts. first_stage_memory: its heap is too "
            "small for the texts asked for. late: the deadline passed while searching.",
            "reqps",
            Query(per_second("farrank_rejections_total", "reason", where=failures), "{{reason}}"),
            Query(per_second("farrank_deadline_drops_total", where=late), "late"),
            stacked=True,
        ),
    )


CHUNKS = "farrank_document_chunks"
DECIDING = "farrank_deciding_chunk_number"
CUT = "farrank_cut_tokens_total"


def documents() -> Dashboard:
    """Show whether reading long documents whole changes the answers, and what is not read."""
    return framed(
        "farrank-documents",
        "Long documents",
        "How long are the documents, is anything of them not read, and would their beginnings have done?",
        Section("The deciding chunk", _deciding()),
        Section("Chunks", _chunks()),
        Section("Tokens cut", _cut()),
    )


def _later(*by: str) -> str:
    first = per_second(f"{DECIDING}_bucket", *by, where=f'{RANKERS}, le="1.0"')
    return f"1 - {share(first, per_second(f'{DECIDING}_count', *by))}"


def _deciding() -> tuple[Panel, ...]:
    return (
        number(
            "Decided beyond the first chunk",
            "Share of documents whose best passage a server that reads only the beginning would have missed.",
            "percentunit",
            Query(_later(), "later"),
            width=8,
        ),
        number(
            "Mean deciding chunk",
            "Which chunk decided, counted from 1.",
            "none",
            Query(mean(DECIDING), "number"),
            width=8,
        ),
        number(
            "Documents scored",
            "Documents of answered calls.",
            "cps",
            Query(per_second(f"{DECIDING}_count"), "documents"),
            width=8,
        ),
        lines(
            "Decided beyond the first chunk, by ranker",
            "FirstP reads one chunk and stays at 0.",
            "percentunit",
            Query(_later("ranker"), "{{ranker}}"),
            maximum=1,
        ),
        spread(
            "Position of the deciding chunk",
            "How many documents were decided by which chunk, counted from 1.",
            "none",
            DECIDING,
        ),
        lines(
            "Deciding chunk",
            "Where the 99th percentile is near that of the chunks, evidence stands at the very end: "
            "what lies beyond max_document_tokens may matter, too.",
            "none",
            *percentiles(DECIDING),
            width=24,
        ),
    )


def _chunks() -> tuple[Panel, ...]:
    return (
        lines("Chunks of a document", "How long the documents are, in chunks.", "none", *percentiles(CHUNKS)),
        spread("Chunks of a document, spread", "How many documents had how many chunks.", "none", CHUNKS),
        lines(
            "Mean chunks by ranker",
            "Rankers differ in their windows: the same document has more chunks in smaller ones.",
            "none",
            Query(mean(CHUNKS, "ranker"), "{{ranker}}"),
            width=24,
        ),
    )


def _cut() -> tuple[Panel, ...]:
    return (
        lines(
            "Tokens not read, by side",
            "Beyond max_query_tokens, max_document_tokens or a call's max_chunks. Each answer says so, too.",
            "short",
            Query(per_second(CUT, "side"), "{{side}}"),
            width=8,
            stacked=True,
        ),
        lines(
            "Tokens not read per document",
            "Mean over the documents of answered calls. Not 0: raise rankers.NAME.max_document_tokens, "
            "if the time for it is there.",
            "none",
            Query(
                share(
                    per_second(CUT, "ranker", where=f'{RANKERS}, side="document"'),
                    per_second(f"{CHUNKS}_count", "ranker"),
                ),
                "{{ranker}}",
            ),
            width=8,
        ),
        lines(
            "Tokens not read in this time range",
            "By ranker and side, since the beginning of the time range that is shown.",
            "short",
            Query(increase(CUT, "ranker", "side"), "{{ranker}}, {{side}}"),
            width=8,
        ),
    )


REAL = "farrank_encoded_tokens_total"
PADDED = "farrank_padded_tokens_total"


def batching() -> Dashboard:
    """Show how full batches are, and how much of them is padding."""
    return framed(
        "farrank-batching",
        "Batching",
        "Are batches full, how much of them is padding, and how long do they take?",
        Section("Size", _size()),
        Section("Padding", _padding()),
        Section("Time", _time()),
    )


def _size() -> tuple[Panel, ...]:
    return (
        lines(
            "Inputs of a batch",
            "Encoder inputs that ran together. 1 at low load is right: nobody is kept waiting for company.",
            "none",
            *percentiles("farrank_batch_pairs"),
        ),
        spread(
            "Inputs of a batch, spread",
            "How many batches held how many inputs.",
            "none",
            "farrank_batch_pairs",
        ),
        lines(
            "Tokens of a batch",
            "Positions that the device computed at once. The bound is batching.max_batch_tokens.",
            "none",
            *percentiles("farrank_batch_tokens"),
        ),
        spread(
            "Tokens of a batch, spread",
            "How many batches held how many tokens.",
            "none",
            "farrank_batch_tokens",
        ),
    )


def _padding() -> tuple[Panel, ...]:
    return (
        lines(
            "Padding",
            "Positions computed over tokens read; 1 is none. Each batch is kept below "
            "batching.max_padding_ratio (1.08 unless configured); more: single inputs are "
            "longer than all that wait with them.",
            "none",
            Query(share(per_second(PADDED, "ranker"), per_second(REAL, "ranker")), "{{ranker}}"),
            bounds=(1.08, 1.2),
        ),
        spread(
            "Padding of a batch, spread",
            "How many batches had how much padding.",
            "none",
            "farrank_batch_padding_ratio",
        ),
        lines(
            "Tokens per second",
            "What was read, and what was computed for it: the gap is padding.",
            "short",
            Query(per_second(REAL), "read"),
            Query(per_second(PADDED), "computed"),
            width=24,
        ),
    )


def _time() -> tuple[Panel, ...]:
    return (
        lines(
            "Time of a batch",
            "What a call that is due first waits at most for the batch before it.",
            "s",
            *percentiles("farrank_batch_duration_seconds"),
            width=8,
        ),
        lines(
            "Batches per second",
            "By ranker; one device serves all of them.",
            "ops",
            Query(per_second("farrank_batch_duration_seconds_count", "ranker"), "{{ranker}}"),
            width=8,
            stacked=True,
        ),
        lines(
            "Mean time of a batch by ranker",
            "Of two rankers with equal batches the slower one has the larger model.",
            "s",
            Query(mean("farrank_batch_duration_seconds", "ranker"), "{{ranker}}"),
            width=8,
        ),
    )


HITS = "farrank_cache_hits_total"
MISSES = "farrank_cache_misses_total"
BUSY = "farrank_device_busy_seconds_total"
RESTARTS = "farrank_worker_restarts_total"


def device() -> Dashboard:
    """Show whether the device is the bottleneck, and what the cache saves it."""
    return framed(
        "farrank-device",
        "Device and cache",
        "Is the device the bottleneck, does it fail, and what does the cache save it?",
        Section("Device", _work()),
        Section("Failures", _failures()),
        Section("Document cache", _cache()),
    )


def _work() -> tuple[Panel, ...]:
    return (
        lines(
            "Utilisation",
            "Share of its time that each replica's device works. Near 100 % for long: add replicas.",
            "percentunit",
            Query(per_second(BUSY, "instance", "device", where=INSTANCES), "{{device}} of {{instance}}"),
            maximum=1,
            bounds=(0.8, 0.95),
        ),
        lines(
            "Tokens read per second",
            "Without padding, by ranker.",
            "short",
            Query(per_second("farrank_encoded_tokens_total", "ranker"), "{{ranker}}"),
            stacked=True,
        ),
        lines(
            "Chunks encoded per second",
            "By ranker. What the cache held is not among them.",
            "short",
            Query(per_second("farrank_encoded_chunks_total", "ranker"), "{{ranker}}"),
            stacked=True,
        ),
        lines(
            "Tokens per busy second",
            "What the device does while it works. Less at equal load: smaller batches, or throttling.",
            "short",
            Query(
                share(
                    per_second("farrank_encoded_tokens_total", "instance", where=INSTANCES),
                    per_second(BUSY, "instance", where=INSTANCES),
                ),
                "{{instance}}",
            ),
        ),
    )


def _failures() -> tuple[Panel, ...]:
    return (
        number(
            "Worker restarts",
            "In this time range. Each answered its calls with UNAVAILABLE; the log says what happened.",
            "none",
            Query(increase(RESTARTS, where=INSTANCES), "restarts"),
            width=6,
            bounds=(1,),
        ),
        number(
            "Failed batches",
            "In this time range. They were split; only inputs that fail alone fail their calls.",
            "none",
            Query(increase("farrank_batch_failures_total"), "batches"),
            width=6,
            bounds=(1, 10),
        ),
        number(
            "Calls out of memory",
            "In this time range: inputs that did not fit into the device's memory even alone.",
            "none",
            Query(increase("farrank_rejections_total", where=f'{RANKERS}, reason="out_of_memory"'), "calls"),
            width=6,
            bounds=(1,),
        ),
        number(
            "Calls lost with the device",
            "In this time range: their work was on a device that died.",
            "none",
            Query(
                increase("farrank_rejections_total", where=f'{RANKERS}, reason=~"worker_died|device_lost"'),
                "calls",
            ),
            width=6,
            bounds=(1,),
        ),
        lines(
            "Failed batches by reason",
            "out_of_memory also halves the batches that follow; error is a fault in the model or an input.",
            "ops",
            Query(per_second("farrank_batch_failures_total", "ranker", "reason"), "{{ranker}}, {{reason}}"),
            stacked=True,
        ),
        lines(
            "Worker restarts by replica",
            "Since each replica's start.",
            "none",
            Query(now(RESTARTS, "instance", where=INSTANCES), "{{instance}}"),
        ),
        lines(
            "Devices by state",
            "While one is reloading, its replica refuses calls and its health is NOT_SERVING; lost ends it.",
            "none",
            Query(now("farrank_device_state", "state", where=INSTANCES), "{{state}}"),
            width=24,
            stacked=True,
        ),
    )


def _cache() -> tuple[Panel, ...]:
    looked_up = f"({per_second(HITS, 'ranker')} + {per_second(MISSES, 'ranker')})"
    return (
        lines(
            "Hits",
            "Share of chunks whose encoding was cached. Only rankers that encode documents apart from "
            "queries (bi-encoders) have a cache.",
            "percentunit",
            Query(share(per_second(HITS, "ranker"), looked_up), "{{ranker}}"),
            width=8,
            maximum=1,
        ),
        lines(
            "Chunks looked up",
            "By whether the cache had them.",
            "short",
            Query(per_second(HITS), "cached"),
            Query(per_second(MISSES), "encoded"),
            width=8,
            stacked=True,
        ),
        lines(
            "Size",
            "Full and with few hits: raise cache_bytes, or the same documents do not come back.",
            "bytes",
            Query(now("farrank_cache_bytes", "instance", where=INSTANCES), "{{instance}}"),
            Query(f"max({now('farrank_cache_bytes_limit', 'instance', where=INSTANCES)})", "bound"),
            width=8,
        ),
    )
