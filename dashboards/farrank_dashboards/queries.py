"""PromQL as the dashboards use it: rates, shares and percentiles of what the variables select."""

from dataclasses import dataclass

from grafana_foundation_sdk.models.prometheus import PromQueryFormat

# What the variables at the top of a dashboard choose.
INSTANCES = 'instance=~"$instance"'
RANKERS = f'{INSTANCES}, ranker=~"$ranker"'

# Codes that are the server's fault. A caller's own are INVALID_ARGUMENT, NOT_FOUND and CANCELLED; for want of
# room or time calls end with RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED.
FAULTS = 'code=~"INTERNAL|UNKNOWN|UNAVAILABLE"'

PERCENTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and how its series are called: `{{label}}` stands for a label's value."""

    expression: str
    legend: str
    format: PromQueryFormat = PromQueryFormat.TIME_SERIES


def per_second(metric: str, *by: str, where: str = RANKERS) -> str:
    """How fast a counter grows, added up for each combination of the labels `by`."""
    return _total(f"rate({metric}{{{where}}}[$__rate_interval])", by)


def increase(metric: str, *by: str, where: str = RANKERS) -> str:
    """How much a counter grew over the time range of the dashboard."""
    return _total(f"increase({metric}{{{where}}}[$__range])", by)


def now(metric: str, *by: str, where: str = RANKERS) -> str:
    """A gauge, added up for each combination of the labels `by`."""
    return _total(f"{metric}{{{where}}}", by)


def share(part: str, whole: str) -> str:
    """One over the other; nothing where the other is 0."""
    return f"{part} / ({whole} > 0)"


def mean(histogram: str, *by: str, where: str = RANKERS) -> str:
    """The average of what a histogram took in."""
    return share(
        per_second(f"{histogram}_sum", *by, where=where), per_second(f"{histogram}_count", *by, where=where)
    )


def percentile(quantile: float, histogram: str, *by: str, where: str = RANKERS) -> str:
    """A quantile, interpolated between the bounds of a histogram's buckets."""
    return f"histogram_quantile({quantile}, {per_second(f'{histogram}_bucket', 'le', *by, where=where)})"


def percentiles(histogram: str, where: str = RANKERS) -> tuple[Query, ...]:
    """Median, 90th and 99th percentile of all that is selected."""
    return tuple(Query(percentile(q, histogram, where=where), f"p{q * 100:g}") for q in PERCENTILES)


def _total(vector: str, by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) ({vector})" if by else f"sum({vector})"
