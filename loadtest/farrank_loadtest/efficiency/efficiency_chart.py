"""Chart of gain against run time, both relative to FirstP, with the papers' point of each ranker."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from scipy.optimize import isotonic_regression

from farrank_loadtest.efficiency.points import Approach, Point
from farrank_loadtest.efficiency.run_times import Conditions
from farrank_loadtest.figures import COLOURS, new_figure

_STYLES: dict[Approach, tuple[str, str]] = {
    "chunks, aggregated": (COLOURS[0], "o"),
    "chunks, tokens interact": (COLOURS[4], "s"),
    "one long input": (COLOURS[2], "^"),
    "query apart": (COLOURS[3], "D"),
    "promising chunks alone": (COLOURS[1], "P"),
}
_PAPER = "0.55"
# Distance between the middles of two names, as a share of the axes' height.
_APART = 0.022
_TICKS = tuple(base * ten for ten in (0.1, 1, 10, 100) for base in (1, 1.5, 2, 3, 4, 5, 7))


def efficiency_chart(conditions: Conditions, points: Sequence[Point]) -> Figure:
    """Draw at least one point, with an arrow from the papers' point.

    It is hollow if its gain is the papers', or may be chance.
    """
    figure = new_figure(12, 8.6)
    axes = figure.subplots()
    for point in points:
        _draw(axes, point)
    axes.axhline(0, color="0.75", linewidth=1, zorder=0)
    axes.plot(1, 0, "*", color="black", markersize=13)
    axes.annotate("FirstP", (1, 0), (0, 9), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xscale("log")
    axes.margins(0.06)
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
    axes.set_xlabel("run time over FirstP's, same documents and machine (log scale)")
    axes.set_ylabel("average gain over FirstP (%)")
    axes.set_title("Cost and gain of reading beyond the first chunk", loc="left", fontweight="bold")
    tokens = ", ".join(f"{count:,}" for count in sorted(set(conditions.documents.values())))
    given = f"{conditions.machine}; {conditions.device}, {conditions.precision}; documents of {tokens} tokens"
    figure.supxlabel(given, x=0.01, ha="left", fontsize=8, color="0.35")
    legend = axes.legend(handles=_legend(points), ncols=4, frameon=False, fontsize=9)
    legend.set(loc="upper center", bbox_to_anchor=(0.5, -0.08))
    _write_names(axes, points)
    return figure


def _draw(axes: Axes, point: Point) -> None:
    colour, marker = _STYLES[point.approach]
    x, y = point.measured.run_time, point.gain.percent
    if point.published_run_time is not None and point.published.gain_percent is not None:
        there = point.published_run_time, point.published.gain_percent
        arrow = {"arrowstyle": "-|>", "color": _PAPER, "linewidth": 1, "shrinkA": 3, "shrinkB": 4}
        axes.annotate("", (x, y), there, arrowprops=arrow)
        axes.plot(*there, marker, color=_PAPER, markersize=5)
    axes.plot(point.measured.run_times, (y, y), color=colour, linewidth=2, alpha=0.35)
    face = colour if point.gain.significant else "white"
    axes.plot(x, y, marker, markersize=8, markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.6)


def _legend(points: Sequence[Point]) -> list[Line2D]:
    approaches = {point.approach for point in points}
    marks: list[tuple[str, str, str, str]] = [
        (each, marker, colour, colour) for each, (colour, marker) in _STYLES.items() if each in approaches
    ]
    if any(point.gain.significant for point in points):
        marks.append(("filled: gain measured, significant", "o", "0.2", "0.2"))
    hollow = {
        "published by the papers": any(not point.gain.measured for point in points),
        "not significant": any(point.gain.measured and not point.gain.significant for point in points),
    }
    if any(hollow.values()):
        told = " or ".join(words for words, there in hollow.items() if there)
        marks.append((f"hollow: gain {told}", "o", "white", "0.2"))
    if any(point.published_run_time for point in points):
        marks.append(("grey: the papers' point, with an arrow to ours", "o", _PAPER, _PAPER))
    handles = [
        Line2D([], [], linestyle="", marker=marker, markerfacecolor=face, markeredgecolor=edge, label=label)
        for label, marker, face, edge in marks
    ]
    if any(low < high for low, high in (point.measured.run_times for point in points)):
        handles.append(Line2D([], [], color="0.2", alpha=0.35, linewidth=2, label="range over rounds"))
    return handles


def _write_names(axes: Axes, points: Sequence[Point]) -> None:
    """Write names in a column next to the axes, each as close to its point's height as the others allow.

    A line joins each name and point. The limits of y must be final.
    """
    column = sorted(points, key=lambda point: (point.gain.percent, point.measured.run_time))
    low, high = axes.get_ylim()
    wanted = (np.array([point.gain.percent for point in column]) - low) / (high - low)
    steps = min(_APART, 1 / len(column)) * np.arange(len(column))
    # After subtracting the steps the places need only ascend; isotonic regression finds the nearest ones.
    places = np.clip(isotonic_regression(wanted - steps).x, 0, 1 - steps[-1]) + steps
    for point, place in zip(column, places, strict=True):
        colour, _ = _STYLES[point.approach]
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "alpha": 0.45, "relpos": (0, 0.5)}
        moved = "" if point.moved is None else f"  {point.moved:.2f}× the paper's"
        axes.annotate(
            point.published.title + moved,
            (point.measured.run_time, point.gain.percent),
            (1.03, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=colour,
            arrowprops=line,
        )
