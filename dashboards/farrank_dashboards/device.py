"""Device and cache: how busy, how fast, how healthy, and what need not be encoded again."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from farrank_dashboards.frame import Section, framed
from farrank_dashboards.panels import Panel, lines, number
from farrank_dashboards.queries import INSTANCES, RANKERS, Query, increase, now, per_second, share

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
            Query(
                increase("farrank_rejections_total", where=f'{RANKERS}, reason="out_of_memory"'),
                "calls",
            ),
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
