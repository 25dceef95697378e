"""Gain over FirstP against run time over FirstP, each ranker beside where the papers have it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from farrank_loadtest.efficiency.points import Approach, Point
from farrank_loadtest.efficiency.run_times import Conditions
from farrank_loadtest.figures import COLOURS, new_figure

# Boxes in pixels, (N, 4): left, bottom, right, top.
Boxes = NDArray[np.float64]
At = tuple[float, float]

# Distances from the point to the label's nearest edge, nearest first.
_DISTANCES_PX = (13, 18, 25, 34, 46, 60, 76, 94, 114, 136, 160, 190, 225, 265, 310, 360, 420, 500)
# To the right first, where a reader looks; then left, above and below, then what lies between.
_ANGLES_DEG = (0, 180, 90, 270, 30, 330, 150, 210, 60, 300, 120, 240, 15, 345, 165, 195, 45, 315, 135, 225)
_MARK_PX = 10.0
_MARGIN_PX = 2.0
_LEADER_FROM_PX = 24.0
_STEP_PX = 6.0
# What a label's place costs, where a dot of its leader that crosses something costs 1.
_PER_PX = 0.05
_PER_COVERED = 100.0


@dataclass(frozen=True, slots=True)
class Label:
    """A text for the point at data coordinates `x`, `y`."""

    text: str
    x: float
    y: float
    colour: str


def place_labels(
    axes: Axes, labels: Sequence[Label], lines: Sequence[tuple[At, At]], boxes: Sequence[Bbox]
) -> list[Annotation]:
    """Write the labels.

    `lines`, in data coordinates from end to end, and `boxes`, in pixels, are kept clear like the points. The
    axes must have their final limits and place.
    """
    taken = [_around(_pixels(axes, (label.x, label.y)), _MARK_PX) for label in labels]
    taken += [np.array([each.extents]) for each in boxes]
    taken += [_along(_pixels(axes, begin), _pixels(axes, end)) for begin, end in lines]
    written = []
    for label in sorted(labels, key=lambda each: (-each.y, each.x)):
        annotation, new = _place(axes, label, np.concatenate(taken))
        written.append(annotation)
        taken.append(new)
    return written


def _place(axes: Axes, label: Label, taken: Boxes) -> tuple[Annotation, Boxes]:
    """Write one where it covers nothing, or else least; give what it takes itself."""
    at = _pixels(axes, (label.x, label.y))
    written = axes.annotate(
        label.text,
        (label.x, label.y),
        xytext=(0, 0),
        # Points, not pixels: those of an SVG are others.
        textcoords="offset points",
        fontsize=8,
        color=label.colour,
        ha="center",
        va="center",
    )
    size, inside, best = written.get_window_extent(), axes.bbox, None
    reach = np.array([size.width / 2 + _MARGIN_PX, size.height / 2 + _MARGIN_PX])
    for centre, distance in _candidates(at, size):
        if best is not None and distance * _PER_PX >= best[0]:
            break
        box = np.concatenate([centre - reach, centre + reach])
        if not (inside.x0 < box[0] and inside.y0 < box[1] and box[2] < inside.x1 and box[3] < inside.y1):
            continue
        cost = distance * _PER_PX + _PER_COVERED * _overlaps(box[None], taken)
        if best is not None and cost >= best[0]:
            continue
        leader = _along(at, _nearest(at, box))[2:-1] if distance > _LEADER_FROM_PX else np.empty((0, 4))
        cost += _overlaps(leader, taken)
        if best is None or cost < best[0]:
            best = (cost, centre, box, leader)
    if best is None:
        # The axes are smaller than the label: nothing is better than where it is.
        return written, np.empty((0, 4))
    _, centre, box, leader = best
    written.set_position(tuple((centre - at) * 72 / axes.figure.dpi))
    if len(leader):
        ends = axes.transData.inverted().transform([at, _nearest(at, box)])
        axes.plot(ends[:, 0], ends[:, 1], color=label.colour, linewidth=0.6, alpha=0.6, zorder=1)
    return written, np.concatenate([box[None], leader])


def _candidates(at: At, size: Bbox) -> Iterator[tuple[NDArray[np.float64], float]]:
    """Yield centres for a box, with their distance, from near to far."""
    for distance, degrees in product(_DISTANCES_PX, _ANGLES_DEG):
        towards = np.array([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))])
        yield at + towards * (distance + np.array([size.width, size.height]) / 2), distance


def _pixels(axes: Axes, at: At) -> At:
    x, y = axes.transData.transform(at)
    return float(x), float(y)


def _nearest(at: At, box: NDArray[np.float64]) -> At:
    x, y = at
    return float(np.clip(x, box[0], box[2])), float(np.clip(y, box[1], box[3]))


def _along(begin: At, end: At) -> Boxes:
    """Cover a line by small boxes."""
    steps = max(1, round(math.dist(begin, end) / _STEP_PX))
    shares = np.linspace(0.0, 1.0, steps + 1)[:, None]
    at = (1 - shares) * begin + shares * end
    return np.concatenate([at - 1, at + 1], axis=1)


def _around(at: At, reach: float) -> Boxes:
    x, y = at
    return np.array([[x - reach, y - reach, x + reach, y + reach]])


def _overlaps(some: Boxes, others: Boxes) -> int:
    """Count the pairs of boxes that share a place."""
    a, b = some[:, None], others[None]
    apart = (a[..., :2] >= b[..., 2:]).any(-1) | (b[..., :2] >= a[..., 2:]).any(-1)
    return int((~apart).sum())


_STYLES: dict[Approach, tuple[str, str]] = {
    "chunks, aggregated": (COLOURS[0], "o"),
    "chunks, tokens interact": (COLOURS[4], "s"),
    "one long input": (COLOURS[2], "^"),
    "query apart": (COLOURS[3], "D"),
}
_PAPER = "0.55"
_TICKS = tuple(base * ten for ten in (0.1, 1, 10, 100) for base in (1, 1.5, 2, 3, 4, 5, 7))


def efficiency_chart(conditions: Conditions, points: Sequence[Point]) -> Figure:
    """Draw at least one point, hollow where the gain is the papers', with an arrow from the papers' place."""
    figure = new_figure(12, 8.6)
    axes = figure.subplots()
    for point in points:
        _draw(axes, point)
    axes.axhline(0, color="0.75", linewidth=1, zorder=0)
    axes.plot(1, 0, "*", color="black", markersize=13)
    _limits(axes, points)
    axes.set_xlabel("run time over FirstP's, same documents and machine (log scale)")
    axes.set_ylabel("average gain over FirstP (%)")
    axes.set_title("What reading on costs, and what it brings", loc="left", fontweight="bold")
    tokens = list(conditions.documents.values())
    given = f"{conditions.machine}; {conditions.device}, {conditions.precision}; documents of "
    given += ", ".join(f"{count:,}" for count in sorted(set(tokens))) + " tokens"
    figure.supxlabel(given, x=0.01, ha="left", fontsize=8, color="0.35")
    axes.legend(handles=_legend(points), loc="lower right", fontsize=9)
    # What stands around the axes now decides where they end up; the labels go by that.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    labels = [Label(_name(each), *_here(each), _STYLES[each.approach][0]) for each in points]
    labels.append(Label("FirstP", 1, 0, "black"))
    lines = [(_there(each, time), _here(each)) for each in points if (time := each.published_run_time)]
    lines += [((low, y), (high, y)) for each in points for low, high, y in [_span(each)]]
    legend = axes.get_legend()
    place_labels(axes, labels, lines, [legend.get_window_extent()] if legend else [])
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
    """Leave room for the labels, and show run times in plain numbers."""
    theirs = [time for point in points if (time := point.published_run_time)]
    times = [1.0, *theirs, *(time for point in points for time in point.measured.run_times)]
    gains = [0.0, *(each for point in points for each in (point.gain.percent, point.published.gain_percent))]
    room = max(0.5, (max(gains) - min(gains)) * 0.08)
    axes.set_xscale("log")
    axes.set_xlim(min(times) / 1.12, max(times) * 1.3)
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
