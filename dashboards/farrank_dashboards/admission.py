"""Queue and admission: what waits, how near the bounds are, and who is refused."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from farrank_dashboards.frame import Section, framed
from farrank_dashboards.panels import Panel, lines, number
from farrank_dashboards.queries import INSTANCES, RANKERS, Query, now, per_second, share

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
