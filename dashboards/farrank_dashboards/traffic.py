"""Traffic and errors: what callers ask, and what they get."""

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from farrank_dashboards.frame import Section, framed
from farrank_dashboards.panels import Panel, lines, number, rows
from farrank_dashboards.queries import FAULTS, INSTANCES, RANKERS, Query, now, per_second, percentile, share

REQUESTS = "farrank_requests_total"
REJECTIONS = "farrank_rejections_total"
DROPS = "farrank_deadline_drops_total"
FAILED = f'{RANKERS}, code!="OK"'
CALLS = per_second(REQUESTS)
FAULTY = share(per_second(REQUESTS, where=f"{RANKERS}, {FAULTS}"), CALLS)


def traffic() -> Dashboard:
    """Show whether it is up, how much is asked of it, and what goes wrong."""
    return framed(
        "farrank-traffic",
        "Traffic and errors",
        "Is it up, how much is asked of it, and what goes wrong?",
        Section("Now", _now()),
        Section("Calls", _calls()),
        Section("Errors", _errors()),
        Section("What runs", _what_runs()),
    )


def _now() -> tuple[Panel, ...]:
    return (
        number("Calls", "Calls that ended, of every outcome.", "reqps", Query(CALLS, "calls")),
        number(
            "Server's faults",
            "Share of calls that ended with INTERNAL, UNKNOWN or UNAVAILABLE. The alert stands at 1 %.",
            "percentunit",
            Query(FAULTY, "faults"),
            bounds=(0.001, 0.01),
        ),
        number(
            "Refused",
            "Share of calls refused or given up for want of room, time or device. The alert stands at 5 %.",
            "percentunit",
            Query(share(per_second(REJECTIONS), CALLS), "refused"),
            bounds=(0.01, 0.05),
        ),
        number(
            "Dropped late",
            "Share of calls that were admitted and then missed their deadline. The alert stands at 1 %.",
            "percentunit",
            Query(share(per_second(DROPS), CALLS), "late"),
            bounds=(0.001, 0.01),
        ),
        number(
            "99th percentile",
            "99 of 100 calls ended within this time, whatever their outcome.",
            "s",
            Query(percentile(0.99, "farrank_request_duration_seconds"), "p99"),
        ),
        number(
            "Replicas",
            "Replicas that Prometheus sees.",
            "none",
            Query(f"count(farrank_build_info{{{INSTANCES}}})", "replicas"),
        ),
    )


def _calls() -> tuple[Panel, ...]:
    return (
        lines(
            "Calls by ranker",
            "`unknown` are calls for a ranker that is not loaded. ListRankers, which has none, is left out.",
            "reqps",
            Query(per_second(REQUESTS, "ranker", where=f'{RANKERS}, ranker!=""'), "{{ranker}}"),
            stacked=True,
        ),
        lines(
            "Calls by method",
            "Rerank brings its candidates, SearchAndRerank has them searched first.",
            "reqps",
            Query(per_second(REQUESTS, "method"), "{{method}}"),
            stacked=True,
        ),
        lines(
            "Calls by code",
            "Every outcome, gRPC's name of it.",
            "reqps",
            Query(per_second(REQUESTS, "code"), "{{code}}"),
            stacked=True,
        ),
        lines(
            "Calls by replica",
            "Replicas of equal load are a sign that the load balancer sees calls, not connections.",
            "reqps",
            Query(per_second(REQUESTS, "instance"), "{{instance}}"),
        ),
    )


def _errors() -> tuple[Panel, ...]:
    return (
        lines(
            "Share of calls that failed, by code",
            "INVALID_ARGUMENT and NOT_FOUND are mistakes of callers, CANCELLED a caller that went away.",
            "percentunit",
            Query(
                f"{per_second(REQUESTS, 'code', where=FAILED)} / on () group_left () ({CALLS} > 0)",
                "{{code}}",
            ),
        ),
        lines(
            "Refused or given up, by reason",
            "queue_full, texts_full, backlog, others_late and calls: overload. deadline_too_short: callers "
            "allow less than a call needs. draining: a replica ends. Others: something died, or no memory.",
            "reqps",
            Query(per_second(REJECTIONS, "reason"), "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Dropped late, by stage",
            "Admitted calls that missed their deadline: admission reckoned with more speed than there was.",
            "reqps",
            Query(per_second(DROPS, "stage"), "{{stage}}"),
            stacked=True,
        ),
        lines(
            "Given up by callers",
            "Calls whose caller went away, by ranker. Many: callers are less patient than their deadlines.",
            "reqps",
            Query(per_second("farrank_cancellations_total", "ranker"), "{{ranker}}"),
            stacked=True,
        ),
        lines(
            "Burn of the latency objective",
            "How many times faster than allowed the objective's budget is used up, over all replicas. At 1 "
            "it lasts 30 days; the alerts stand at 14.4 (an hour), 6 (six hours) and 1 (three days).",
            "none",
            *(
                Query(
                    f'farrank:latency_burn:ratio_rate{window}{{ranker=~"$ranker"}}',
                    f"{{{{ranker}}}}, {window}",
                )
                for window in ("1h", "6h", "3d")
            ),
            width=24,
            bounds=(6, 14.4),
        ),
    )


def _what_runs() -> tuple[Panel, ...]:
    return (
        rows(
            "Rankers",
            "What each replica has loaded. Two versions of a ranker: a rollout is under way.",
            Query(
                now(
                    "farrank_ranker_info",
                    "instance",
                    "ranker",
                    "version",
                    "family",
                    "runtime",
                    "device",
                    "precision",
                ),
                "",
                PromQueryFormat.TABLE,
            ),
            width=16,
        ),
        rows(
            "Builds",
            "What each replica is.",
            Query(
                now("farrank_build_info", "instance", "version", "python", "torch", where=INSTANCES),
                "",
                PromQueryFormat.TABLE,
            ),
            width=8,
        ),
    )
