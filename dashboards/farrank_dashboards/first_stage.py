"""First stage: searching the indexes for calls that bring no candidates."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from farrank_dashboards.frame import Section, framed
from farrank_dashboards.panels import Panel, lines, spread
from farrank_dashboards.queries import (
    INSTANCES,
    RANKERS,
    Query,
    mean,
    per_second,
    percentile,
    percentiles,
    share,
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
        Section("Calls that search", _calls()),
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


def _calls() -> tuple[Panel, ...]:
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
