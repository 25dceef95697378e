"""The dashboards of what callers see: traffic, latency, admission."""

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from farrank_dashboards.panels import (
    FAULTS,
    INSTANCES,
    RANKERS,
    Panel,
    Query,
    Section,
    framed,
    lines,
    mean,
    now,
    number,
    per_second,
    percentile,
    percentiles,
    rows,
    share,
    spread,
)

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
        Section("Calls", _call_rates()),
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


def _call_rates() -> tuple[Panel, ...]:
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
        Section("Calls", _call_times()),
        Section("Stages", _stages()),
    )


def _call_times() -> tuple[Panel, ...]:
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
            "The objective of the alerts is the line of 5 s; it should lie at 99 % or more.",
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


# Where the saturation alerts stand, and the bound itself.
NEAR, FULL = 0.8, 1.0


def admission() -> Dashboard:
    """Show how much waits, how long, and how near the bounds are."""
    return framed(
        "farrank-admission",
        "Queue and admission",
        "How much waits, for how long, how near are the bounds, and who is refused?",
        Section("Bounds", _bounds()),
        Section("Queue", _queue()),
        Section("Refusals", _refusals()),
    )


def _bounds() -> tuple[Panel, ...]:
    held = {
        "Admitted tokens": ("farrank_admitted_tokens", "limits.max_queued_tokens"),
        "Calls in flight": ("farrank_requests_in_flight", "limits.max_concurrent_calls"),
        "Held texts": ("farrank_held_characters", "limits.max_held_characters"),
    }
    shares = {
        title: share(
            now(metric, "instance", where=INSTANCES), now(f"{metric}_limit", "instance", where=INSTANCES)
        )
        for title, (metric, _) in held.items()
    }
    numbers = (
        number(
            title,
            f"The fullest replica's share of {key}. The alert stands at 80 %.",
            "percentunit",
            Query(f"max({shares[title]})", "fullest"),
            width=8,
            bounds=(NEAR, FULL),
        )
        for title, (_, key) in held.items()
    )
    courses = (
        lines(
            f"{title}, share of the bound",
            f"By replica. At 100 %, calls are refused; the bound is {key}.",
            "percentunit",
            Query(shares[title], "{{instance}}"),
            width=8,
            bounds=(NEAR, FULL),
        )
        for title, (_, key) in held.items()
    )
    return (*numbers, *courses)


def _queue() -> tuple[Panel, ...]:
    return (
        lines(
            "Tokens that wait",
            "Tokenized and not yet taken into a batch.",
            "short",
            Query(now("farrank_queue_tokens", "ranker"), "{{ranker}}"),
            width=8,
            stacked=True,
        ),
        lines(
            "Wait of the input that is due first",
            "The longest of all replicas. More than the time of a few batches: the device cannot keep up.",
            "s",
            Query(f"max by (ranker) (farrank_queue_age_seconds{{{RANKERS}}})", "{{ranker}}"),
            width=8,
        ),
        lines(
            "Backlog in seconds of work",
            "Admitted tokens over the measured speed, of the most loaded replica: a new call's wait.",
            "s",
            Query(
                f"max by (ranker) (farrank_admitted_tokens{{{RANKERS}}} / farrank_device_tokens_per_second)",
                "{{ranker}}",
            ),
            width=8,
        ),
    )


def _refusals() -> tuple[Panel, ...]:
    overload = f'{RANKERS}, reason=~"queue_full|texts_full|backlog|others_late|calls"'
    return (
        lines(
            "Refused for overload, by reason",
            "queue_full, texts_full, calls: a bound of the server. backlog: the call would be late itself; "
            "others_late: it would make others late.",
            "reqps",
            Query(per_second("farrank_rejections_total", "reason", where=overload), "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Deadlines that cannot hold, by ranker",
            "Calls that need longer than their deadline even alone: they allow too little or send too much.",
            "reqps",
            Query(
                per_second(
                    "farrank_rejections_total", "ranker", where=f'{RANKERS}, reason="deadline_too_short"'
                ),
                "{{ranker}}",
            ),
            stacked=True,
        ),
        lines(
            "Dropped late, by stage",
            "Admitted and late all the same: the speed below is measured too high.",
            "reqps",
            Query(per_second("farrank_deadline_drops_total", "stage"), "{{stage}}"),
            stacked=True,
        ),
        lines(
            "Speed that admission reckons with",
            "Tokens per second as measured on each replica.",
            "short",
            Query(
                now("farrank_device_tokens_per_second", "instance", "ranker"), "{{ranker}} on {{instance}}"
            ),
        ),
    )
