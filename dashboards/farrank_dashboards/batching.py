"""Batching: how well the inputs of all calls fill the device."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from farrank_dashboards.frame import Section, framed
from farrank_dashboards.panels import Panel, lines, spread
from farrank_dashboards.queries import Query, mean, per_second, percentiles, share

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
