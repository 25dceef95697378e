"""Gain over FirstP against run time over FirstP, each ranker beside where the papers have it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from statistics import median
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
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
}
_PAPER = "0.55"
# Between marks and names, and from the middle of one name to that of the next, of a name's height.
_GAP_PX = 36.0
_APART = 1.3
_TICKS = tuple(base * ten for ten in (0.1, 1, 10, 100) for base in (1, 1.5, 2, 3, 4, 5, 7))


def efficiency_chart(conditions: Conditions, points: Sequence[Point]) -> Figure:
    """Draw at least one point, hollow where the gain is the papers', with an arrow from the papers' place."""
    figure = new_figure(12, 8.6)
    axes = figure.subplots()
    for point in points:
        _draw(axes, point)
    axes.axhline(0, color="0.75", linewidth=1, zorder=0)
    axes.plot(1, 0, "*", color="black", markersize=13)
    axes.annotate("FirstP", (1, 0), (0, 9), textcoords="offset points", ha="center", fontsize=8)
    _limits(axes, points)
    axes.set_xlabel("run time over FirstP's, same documents and machine (log scale)")
    axes.set_ylabel("average gain over FirstP (%)")
    axes.set_title("What reading on costs, and what it brings", loc="left", fontweight="bold")
    tokens = list(conditions.documents.values())
    given = f"{conditions.machine}; {conditions.device}, {conditions.precision}; documents of "
    given += ", ".join(f"{count:,}" for count in sorted(set(tokens))) + " tokens"
    figure.supxlabel(given, x=0.01, ha="left", fontsize=8, color="0.35")
    below = (0.5, -0.08)
    axes.legend(
        handles=_legend(points), loc="upper center", bbox_to_anchor=below, ncols=4, frameon=False, fontsize=9
    )
    # What stands around the axes now decides where they end up; the names go by that.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    labels = [Label(_name(each), *_here(each), _STYLES[each.approach][0]) for each in points]
    theirs = [time for point in points if (time := point.published_run_time)]
    times = [*theirs, *(time for point in points for time in point.measured.run_times)]
    place_labels(axes, labels, min(times), max(times), kept=1.0)
    return figure


def _draw(axes: Axes, point: Point) -> None:
    colour, marker = _STYLES[point.approach]
    x, y = _here(point)
    theirs = point.published_run_time
    if theirs is not None:
        there = _there(point, theirs)
        arrow = {"arrowstyle": "-|>", "color": _PAPER, "linewidth": 1, "shrinkA": 3, "shrinkB": 4}
        axes.annotate("", (x, y), there, arrowprops=arrow)
        axes.plot(*there, marker, color=_PAPER, markersize=5)
    low, high, _ = _span(point)
    axes.plot((low, high), (y, y), color=colour, linewidth=2, alpha=0.35)
    face = colour if point.gain.measured else "white"
    axes.plot(x, y, marker, markersize=8, markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.6)


def _here(point: Point) -> tuple[float, float]:
    return point.measured.run_time, point.gain.percent


def _span(point: Point) -> tuple[float, float, float]:
    return *point.measured.run_times, point.gain.percent


def _there(point: Point, run_time: float) -> tuple[float, float]:
    return run_time, point.published.gain_percent


def _name(point: Point) -> str:
    moved = "" if point.moved is None else f"  {point.moved:.2f}× the paper's"
    return point.published.title + moved


def _limits(axes: Axes, points: Sequence[Point]) -> None:
    """Set the limits of y, and show run times in plain numbers."""
    gains = [0.0, *(each for point in points for each in (point.gain.percent, point.published.gain_percent))]
    room = max(0.5, (max(gains) - min(gains)) * 0.08)
    axes.set_xscale("log")
    axes.set_ylim(min(gains) - room, max(gains) + room)
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.grid(visible=True, which="major", color="0.93")
    axes.set_axisbelow(True)


def _legend(points: Sequence[Point]) -> list[Line2D]:
    handles = [
        _handle(approach, marker, colour, colour)
        for approach, (colour, marker) in _STYLES.items()
        if any(point.approach == approach for point in points)
    ]
    if any(point.gain.measured for point in points):
        handles.append(_handle("filled: gain measured", "o", "0.2", "0.2"))
    if not all(point.gain.measured for point in points):
        handles.append(_handle("hollow: gain published by the papers", "o", "white", "0.2"))
    if any(point.published_run_time for point in points):
        handles.append(_handle("grey: where the papers have it, and the way here", "o", _PAPER, _PAPER))
    if any(low < high for low, high, _ in map(_span, points)):
        handles.append(Line2D([], [], color="0.2", alpha=0.35, linewidth=2, label="from round to round"))
    return handles


def _handle(label: str, marker: str, face: str, edge: str) -> Line2D:
    return Line2D(
        [], [], linestyle="", marker=marker, markerfacecolor=face, markeredgecolor=edge, label=label
    )


@dataclass(frozen=True, slots=True)
class Label:
    """A text for the point at data coordinates `x`, `y`."""

    text: str
    x: float
    y: float
    colour: str


def place_labels(axes: Axes, labels: Sequence[Label], left: float, right: float, kept: float) -> None:
    """Write names in two columns beside the marks, each joined to its point by a line.

    Marks stand from `left` to `right`, and another one at `kept`. The axes get their limits of x (log) here;
    all else about them must be final.
    """
    written = [
        (each, axes.text(each.x, each.y, each.text, fontsize=8, color=each.colour, va="center"))
        for each in labels
    ]
    middle = median(each.x for each in labels)
    columns = [[pair for pair in written if (pair[0].x <= middle) is is_left] for is_left in (True, False)]
    left_px, right_px = (
        max((text.get_window_extent().width for _, text in column), default=0.0) for column in columns
    )
    at_left, at_right = _make_room(axes, left, right, kept, left_px, right_px)
    _stack(axes, columns[0], at_left, "right")
    _stack(axes, columns[1], at_right, "left")


def _make_room(
    axes: Axes, left: float, right: float, kept: float, left_px: float, right_px: float
) -> tuple[float, float]:
    """Set the limits of x so that both columns fit; give where the left one ends and the right one begins."""
    whole_px, right_px = axes.bbox.width, right_px + 2 * _GAP_PX
    # Between `kept` and the other marks, if the left column fits there; else on the far side of it.
    begin, before_px = kept, _GAP_PX
    scale = (whole_px - right_px - before_px) / log10(right / kept)
    at_left = left
    if kept > left or scale * log10(left / kept) < left_px + 3 * _GAP_PX:
        begin = at_left = min(left, kept)
        before_px = left_px + 2 * _GAP_PX
        scale = (whole_px - right_px - before_px) / log10(right / begin)
    first = log10(begin) - before_px / scale
    axes.set_xlim(10**first, 10 ** (first + whole_px / scale))
    gap = 10 ** (_GAP_PX / scale)
    return at_left / gap, right * gap


def _stack(
    axes: Axes, column: Sequence[tuple[Label, Text]], x: float, side: Literal["left", "right"]
) -> None:
    """Put names above each other at `x`, each as near to the height of its point as the others leave."""
    if not column:
        return
    column = sorted(column, key=lambda pair: (pair[0].y, pair[0].x))
    apart = _APART * max(text.get_window_extent().height for _, text in column)
    steps = apart * np.arange(len(column))
    wanted = np.array([axes.transData.transform((each.x, each.y))[1] for each, _ in column])
    bottom, top = axes.bbox.y0 + apart, axes.bbox.y1 - apart
    # Less their steps, the places must only ascend: the nearest such places are an isotonic regression.
    places = isotonic_regression(wanted - steps).x
    places = np.clip(places, bottom, max(bottom, top - steps[-1])) + steps
    for (each, text), place in zip(column, places, strict=True):
        _, y = axes.transData.inverted().transform((0, place))
        text.set(position=(x, y), horizontalalignment=side)
        axes.plot((each.x, x), (each.y, y), color=each.colour, linewidth=0.7, alpha=0.45, zorder=1)
