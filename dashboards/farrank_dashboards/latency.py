"""Latency: of calls, and of the stages that they pass."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from farrank_dashboards.frame import Section, framed
from farrank_dashboards.panels import Panel, lines, spread
from farrank_dashboards.queries import RANKERS, Query, mean, per_second, percentile, percentiles, share

CALL = "farrank_request_duration_seconds"
STAGE = "farrank_stage_duration_seconds"
RERANKING = f'{RANKERS}, method=~"Rerank|SearchAndRerank"'
# The bounds of buckets that a share is shown for.
WITHIN_S = ("0.1", "0.5", "1.0", "5.0")


def latency() -> Dashboard:
    """Show how long calls take, and in which stage."""
    return framed(
        "farrank-latency",
        "Latency by stage",
        "How long do calls take, and where does the time go?",
        Section("Calls", _calls()),
        Section("Stages", _stages()),
    )


def _calls() -> tuple[Panel, ...]:
    within = (
        Query(
            share(
                per_second(f"{CALL}_bucket", where=f'{RERANKING}, le="{bound}"'),
                per_second(f"{CALL}_count", where=RERANKING),
            ),
            f"within {float(bound):g} s",
        )
        for bound in WITHIN_S
    )
    return (
        lines(
            "Calls that rerank",
            "From arrival to end, whatever the outcome: refused calls are short.",
            "s",
            *percentiles(CALL, where=RERANKING),
        ),
        spread("Calls that rerank, spread", "How many calls took how long.", "s", CALL, where=RERANKING),
        lines(
            "95th percentile by ranker",
            "Rankers share the device: a slow one makes the others wait.",
            "s",
            Query(percentile(0.95, CALL, "ranker", where=RERANKING), "{{ranker}}"),
        ),
        lines(
            "Share of calls within",
            "The objective of the alerts is the line of 1 s; it should lie at 99 % or more.",
            "percentunit",
            *within,
            maximum=1,
        ),
        lines(
            "95th percentile by replica",
            "One that stands out shares its machine with something else, or got the long documents.",
            "s",
            Query(percentile(0.95, CALL, "instance", where=RERANKING), "{{instance}}"),
            width=24,
        ),
    )


def _stages() -> tuple[Panel, ...]:
    by_stage = (
        lines(
            f"{name} by stage",
            "tokenization, queue, inference and aggregation, of answered calls. They overlap within a call.",
            "s",
            Query(percentile(quantile, STAGE, "stage"), "{{stage}}"),
            width=8,
        )
        for name, quantile in (("Median", 0.5), ("90th percentile", 0.9), ("99th percentile", 0.99))
    )
    return (
        *by_stage,
        lines(
            "Mean by stage",
            "Where the time goes. queue: more work than the device does; inference: long documents or large "
            "batches; tokenization: too few tokenizer_threads.",
            "s",
            Query(mean(STAGE, "stage"), "{{stage}}"),
            stacked=True,
        ),
        lines(
            "First stage",
            "Searching and reading the texts, of calls that bring no candidates.",
            "s",
            *percentiles("farrank_first_stage_duration_seconds", where='instance=~"$instance"'),
        ),
    )
