"""The files of an efficiency test: the table, the points as CSV, and the plot."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from farrank_loadtest.efficiency.efficiency_chart import efficiency_chart
from farrank_loadtest.efficiency.points import Point
from farrank_loadtest.efficiency.run_times import FILE, Conditions, Results
from farrank_loadtest.errors import LoadtestError
from farrank_loadtest.kept_files import markdown_table, new_folder, write_csv, writing_to


def _csv_row(point: Point) -> dict[str, Any]:
    """Give a ranker's figures; times are in seconds, rounds separated by semicolons."""
    measured = point.measured
    mine, first = measured.ranker_timed, measured.firstp_timed
    lowest, highest = measured.run_times
    published = point.published.run_time or (None, None)
    return {
        "ranker": measured.ranker,
        "title": point.published.title,
        "approach": point.approach,
        "firstp": measured.firstp,
        "run_time": measured.run_time,
        "run_time_lowest": lowest,
        "run_time_highest": highest,
        "published_run_time_lowest": published[0],
        "published_run_time_highest": published[1],
        "run_time_over_published": point.moved,
        "gain_percent": point.gain.percent,
        "gain": "measured" if point.gain.measured else "published",
        "gain_source": point.gain.source,
        "gain_queries": point.gain.queries,
        "gain_p": point.gain.p,
        "published_gain_percent": point.published.gain_percent,
        "seconds": mine.median_s,
        "firstp_seconds": first.median_s,
        "inputs": mine.inputs,
        "firstp_inputs": first.inputs,
        "padded_tokens": mine.padded_tokens,
        "firstp_padded_tokens": first.padded_tokens,
        "tokens_over_firstp": measured.tokens,
        "tokens_over_firstp_if_padded": measured.tokens_if_padded,
        "time_of_position_over_firstp": measured.cost_of_token,
        "aggregator_share": measured.aggregator_share,
        "rounds_s": _joined(mine.client_s),
        "firstp_rounds_s": _joined(first.client_s),
        "encoder_rounds_s": _joined(mine.encoder_s),
        "firstp_encoder_rounds_s": _joined(first.encoder_s),
        "aggregator_rounds_s": _joined(mine.aggregator_s),
    }


def _joined(values: Sequence[float]) -> str:
    return ";".join(map(str, values))


def render(results: Results, points: Sequence[Point]) -> str:
    """Write the table in Markdown, aligned for a terminal too, and the conditions below it."""
    rows = [_table_row(point) for point in points]
    return markdown_table(list(rows[0]), [list(row.values()) for row in rows]) + f"\n\n{_legend(results)}\n"


def _table_row(point: Point) -> dict[str, str]:
    measured, gain = point.measured, point.gain
    mine, first = measured.ranker_timed, measured.firstp_timed
    low, high = measured.run_times
    least, most = point.published.run_time or (None, None)
    return {
        "ranker": measured.ranker,
        "FirstP": measured.firstp,
        "x here": f"{measured.run_time:.2f} ({low:.2f} to {high:.2f})",
        "x paper": "–" if least is None else f"{least:.2f}" + ("" if least == most else f" to {most:.2f}"),
        "here / paper": "–" if point.moved is None else f"{point.moved:.2f}",
        # A true minus, as in the papers: it is as wide as the plus.
        "gain": f"{gain.percent:+.1f}%".replace("-", "−"),
        "n": "–" if gain.queries is None else f"{gain.queries:,}",
        "p": "–" if gain.p is None else "below .001" if gain.p < 0.001 else f"{gain.p:.3f}",
        "gain's source": gain.source,
        "inputs": f"{mine.inputs:,} / {first.inputs:,}",
        "padded tokens": f"{mine.padded_tokens:,} / {first.padded_tokens:,}",
        "why": point.why,
    }


def _legend(results: Results) -> str:
    given = results.conditions
    tokens = ", ".join(f"{count:,}" for count in given.documents.values())
    versions = ", ".join(f"{name} {version}" for name, version in given.versions.items())
    weights = ", ".join(given.trained) or "none"
    return (
        "x: a caller's waiting time for the ranker over that for its FirstP, medians over rounds "
        f"({given.rounds} of each; in parentheses: from the lowest round to the highest). Inputs "
        "and padded tokens: of a call, ranker / FirstP. Positions are those that the encoder "
        "computed, including padding. Gains have the number of their queries, and the larger p of the paired "
        "t-test and of randomisation, the largest of all test sets. Seconds are in the CSV: those of one "
        "FirstP differ within a run.\n\n"
        f"The documents of a call have {tokens} tokens; the query: {given.query!r}.\n\n"
        f"{given.machine}; {given.device}, {given.precision}; {versions}. Trained weights: {weights}.\n\n"
        f"`{results.command}`"
    )


TABLE = "efficiency.md"
CSV = "efficiency.csv"
PNG = "efficiency.png"
SVG = "efficiency.svg"


def open_folder(folder: Path, conditions: Conditions, command: str, *, resume: bool) -> Results:
    """Make the folder before anything is measured, or read its earlier results to continue from.

    Raises: LoadtestError if it cannot be written to, holds results without `resume`, or results of other
    conditions; InputError if its file is something else.
    """
    with writing_to(folder):
        held = (folder / FILE).exists()
    if not held:
        new_folder(folder)
        results = Results(conditions, command, {})
        results.write(folder)
        return results
    if not resume:
        raise LoadtestError(
            f"{folder}: already holds {FILE}; --resume continues from it, or name another folder"
        )
    results = Results.read(folder)
    for each in fields(Conditions):
        old, new = getattr(results.conditions, each.name), getattr(conditions, each.name)
        if old != new:
            raise LoadtestError(
                f"{folder / FILE}: was measured with {each.name} {old!r}, not {new!r}: "
                "the two do not compare; name another folder"
            )
    return results


def write_report(folder: Path, results: Results, points: Sequence[Point]) -> str:
    """Write plot, CSV and table, and return the table; without a point nothing is written.

    Raises: LoadtestError if a file cannot be written.
    """
    if not points:
        return ""
    table = render(results, points)
    with writing_to(folder):
        (folder / TABLE).write_text(table, encoding="utf-8")
        write_csv(folder / CSV, [_csv_row(point) for point in points])
        figure = efficiency_chart(results.conditions, points)
        figure.savefig(folder / PNG)
        # A fixed salt of ids and no date: the same points give the same file.
        with rc_context({"svg.hashsalt": FILE}):
            figure.savefig(folder / SVG, metadata={"Date": None})
    return table
