"""Positions of relevant passages as a table, as CSV and as a chart, compared with the papers'."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from farrank_training.data_sets.positions import CHUNK_TOKENS, ChunkShare, Positions, by_chunk


@dataclass(frozen=True, slots=True)
class PublishedPositions:
    """The papers' percentages by chunk, 1 to 6 and 6+."""

    name: str
    starts: tuple[float, ...]
    ends: tuple[float, ...]
    marker: str


# Source: Boytsov et al., arXiv 2207.01262, online appendix, Table 2.
PUBLISHED = (
    PublishedPositions(
        "MS MARCO dev", (85.9, 9.1, 2.6, 1.2, 0.6, 0.6, 0.1), (71.0, 14.9, 6.1, 3.0, 1.4, 1.2, 2.5), "o"
    ),
    PublishedPositions(
        "FiRA", (83.8, 9.9, 2.3, 2.2, 0.7, 0.4, 0.7), (76.4, 15.3, 3.9, 2.2, 0.9, 0.5, 0.7), "D"
    ),
)


def write_positions(folder: Path, name: str, positions: Positions, chunk_tokens: int = CHUNK_TOKENS) -> str:
    """Write positions.csv, positions.md and positions.png, and return the table of positions.md.

    Raises: OSError if the folder cannot be written.
    """
    counted = by_chunk(positions.found, chunk_tokens)
    table = positions_table(name, positions, counted, chunk_tokens)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "positions.csv").write_text(_csv(counted, len(positions.found)), encoding="utf-8")
    (folder / "positions.md").write_text(table, encoding="utf-8")
    positions_chart(name, positions, counted, chunk_tokens).savefig(folder / "positions.png")
    return table


def positions_table(name: str, positions: Positions, counted: Sequence[ChunkShare], chunk_tokens: int) -> str:
    """Write a Markdown table in percent, with the papers' percentages if chunks have the papers' length."""
    published = PUBLISHED if chunk_tokens == CHUNK_TOKENS else ()
    total = len(positions.found)
    heads = [f"{name}, {what}" for what in ("start", "end")]
    heads += [f"the papers' {each.name}, {what}" for each in published for what in ("start", "end")]
    lines = [f"| chunk of {chunk_tokens} tokens | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    for index, chunk in enumerate(counted):
        percent = [100 * chunk.starts / total, 100 * chunk.ends / total]
        percent += [value for each in published for value in (each.starts[index], each.ends[index])]
        lines.append(f"| {chunk.chunk} | {' | '.join(f'{value:.1f}%' for value in percent)} |")
    lines += ["", f"{total:,} pairs of query and document.", *(f"{note}." for note in positions.notes)]
    return "\n".join(lines) + "\n"


def _csv(counted: Sequence[ChunkShare], total: int) -> str:
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["chunk", "starts", "ends", "starts_percent", "ends_percent"])
    for each in counted:
        percent = (f"{100 * count / total:.2f}" for count in (each.starts, each.ends))
        rows.writerow([each.chunk, each.starts, each.ends, *percent])
    return out.getvalue()


def positions_chart(
    name: str, positions: Positions, counted: Sequence[ChunkShare], chunk_tokens: int
) -> Figure:
    """Draw where passages start and where they end, side by side, with the papers' shares as marks."""
    figure = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    starts, ends = figure.subplots(1, 2, sharey=True)
    total = len(positions.found)
    _draw(starts, "start", [100 * each.starts / total for each in counted], name)
    _draw(ends, "end", [100 * each.ends / total for each in counted], name)
    if chunk_tokens == CHUNK_TOKENS:
        for each in PUBLISHED:
            for axes, shares in ((starts, each.starts), (ends, each.ends)):
                axes.plot(range(len(shares)), shares, each.marker, color="#D55E00", markerfacecolor="white")
                axes.lines[-1].set_label(f"the papers' {each.name}")
    for axes in (starts, ends):
        axes.set_xticks(range(len(counted)), [each.chunk for each in counted])
        axes.set_xlabel(f"chunk of {chunk_tokens} tokens")
    starts.set_ylabel("of pairs of query and document")
    starts.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    ends.legend(frameon=False)
    notes = "; ".join([f"{total:,} pairs of query and document", *positions.notes])
    figure.supxlabel(notes, x=0.01, ha="left", fontsize=7, color="0.35", wrap=True)
    figure.suptitle("Where the first relevant passage lies", x=0.01, ha="left", fontweight="bold")
    return figure


def _draw(axes: Axes, what: str, percent: Sequence[float], name: str) -> None:
    axes.bar(range(len(percent)), percent, color="#0072B2", label=name)
    axes.set_title(f"{what}s in", loc="left", fontsize=10)
    axes.grid(axis="y", color="0.93")
    axes.set_axisbelow(True)
