"""The table: each ranker's run time beside the papers', and what it is made of."""

from collections.abc import Sequence

from farrank_loadtest.efficiency.points import Point
from farrank_loadtest.efficiency.result import Results
from farrank_loadtest.markdown import markdown_table

_HEADS = (
    "ranker",
    "FirstP",
    "s",
    "FirstP's s",
    "x here",
    "x paper",
    "here / paper",
    "gain",
    "gain's source",
    "inputs",
    "padded tokens",
    "why",
)


def render(results: Results, points: Sequence[Point]) -> str:
    """Write it in Markdown, aligned for a terminal too, and below it what was measured on what."""
    return markdown_table(_HEADS, [_row(point) for point in points]) + "\n\n" + _legend(results) + "\n"


def _row(point: Point) -> tuple[str, ...]:
    measured = point.measured
    mine, first = measured.ranker_timed, measured.firstp_timed
    low, high = measured.run_times
    return (
        measured.ranker,
        measured.firstp,
        f"{mine.median_s:.3g}",
        f"{first.median_s:.3g}",
        f"{measured.run_time:.2f} ({low:.2f} to {high:.2f})",
        _published(point),
        "–" if point.moved is None else f"{point.moved:.2f}",
        # A true minus, as in the papers: it is as wide as the plus.
        f"{point.gain.percent:+.1f}%".replace("-", "−"),
        point.gain.source,
        f"{mine.inputs:,} / {first.inputs:,}",
        f"{mine.padded_tokens:,} / {first.padded_tokens:,}",
        point.why,
    )


def _published(point: Point) -> str:
    if point.published.run_time is None:
        return "–"
    low, high = point.published.run_time
    return f"{low:.2f}" if low == high else f"{low:.2f} to {high:.2f}"


def _legend(results: Results) -> str:
    given = results.conditions
    tokens = list(given.documents.values())
    versions = ", ".join(f"{name} {version}" for name, version in given.versions.items())
    weights = ", ".join(given.trained) or "none"
    lines = (
        "x: what a caller waits for the ranker over what it waits for its FirstP, medians over rounds "
        f"({given.rounds} of each; in parentheses: from the lowest round to the highest). Inputs "
        "and padded tokens: of a call, ranker / FirstP. Positions are those the encoder "
        "computed, padding included.",
        f"The documents of a call have {', '.join(f'{count:,}' for count in tokens)} tokens; "
        f"the query: {given.query!r}.",
        f"{given.machine}; {given.device}, {given.precision}; {versions}. Trained weights: {weights}.",
        f"`{results.command}`",
    )
    return "\n\n".join(lines)
