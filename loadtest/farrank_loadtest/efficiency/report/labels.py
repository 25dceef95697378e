"""Put a name beside every point so that none covers another, a point, or the line to one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

# Distances from the point to the label's nearest edge, in pixels, nearest first.
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
    axes: Axes,
    labels: Sequence[Label],
    lines: Sequence[tuple[tuple[float, float], tuple[float, float]]],
    boxes: Sequence[Bbox],
) -> list[Annotation]:
    """Write the labels.

    `lines`, in data coordinates from end to end, and `boxes`, in pixels, are kept clear like the points.

    The axes must have their final limits and place.
    """
    taken = [_around(_pixels(axes, (label.x, label.y)), _MARK_PX) for label in labels]
    taken += boxes
    for begin, end in lines:
        taken += _along(_pixels(axes, begin), _pixels(axes, end))
    return [_place(axes, label, taken) for label in sorted(labels, key=lambda each: (-each.y, each.x))]


def _place(axes: Axes, label: Label, taken: list[Bbox]) -> Annotation:
    """Write one where it covers least of what is taken, mostly nothing, and take its place."""
    at_x, at_y = _pixels(axes, (label.x, label.y))
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
    size = written.get_window_extent()
    inside, best = axes.bbox, None
    for centre_x, centre_y, distance in _candidates(at_x, at_y, size.width, size.height):
        if best is not None and distance * _PER_PX >= best[0]:
            break
        box = Bbox.from_bounds(
            centre_x - size.width / 2, centre_y - size.height / 2, size.width, size.height
        ).padded(_MARGIN_PX)
        if not (inside.x0 < box.x0 and box.x1 < inside.x1 and inside.y0 < box.y0 and box.y1 < inside.y1):
            continue
        leader = _leader(at_x, at_y, box) if distance > _LEADER_FROM_PX else []
        cost = distance * _PER_PX + _PER_COVERED * sum(box.overlaps(other) for other in taken)
        if best is None or cost < best[0]:
            cost += sum(dot.overlaps(other) for dot, other in product(leader, taken))
        if best is None or cost < best[0]:
            best = (cost, centre_x, centre_y, box, leader)
    if best is None:
        # The axes are smaller than the label: nothing is better than where it is.
        return written
    _, centre_x, centre_y, box, leader = best
    points = 72 / axes.figure.dpi
    written.set_position(((centre_x - at_x) * points, (centre_y - at_y) * points))
    taken.append(box)
    if leader:
        taken += leader
        near_x, near_y = _nearest(at_x, at_y, box)
        ends = axes.transData.inverted().transform([(at_x, at_y), (near_x, near_y)])
        axes.plot(ends[:, 0], ends[:, 1], color=label.colour, linewidth=0.6, alpha=0.6, zorder=1)
    return written


def _pixels(axes: Axes, at: tuple[float, float]) -> tuple[float, float]:
    x, y = axes.transData.transform(at)
    return float(x), float(y)


def _candidates(x: float, y: float, width: float, height: float) -> Iterator[tuple[float, float, float]]:
    """Yield centres for a box, with their distance, from near to far."""
    for distance, degrees in product(_DISTANCES_PX, _ANGLES_DEG):
        cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        yield x + cosine * (distance + width / 2), y + sine * (distance + height / 2), distance


def _leader(x: float, y: float, box: Bbox) -> list[Bbox]:
    return _along((x, y), _nearest(x, y, box))[2:-1]


def _nearest(x: float, y: float, box: Bbox) -> tuple[float, float]:
    return min(max(x, box.x0), box.x1), min(max(y, box.y0), box.y1)


def _along(begin: Sequence[float], end: Sequence[float]) -> list[Bbox]:
    """Cover a line by small boxes."""
    steps = max(1, round(math.dist(begin, end) / _STEP_PX))
    return [
        _around([(1 - at / steps) * b + at / steps * e for b, e in zip(begin, end, strict=True)], 1.0)
        for at in range(steps + 1)
    ]


def _around(at: Sequence[float], reach: float) -> Bbox:
    x, y = at
    return Bbox.from_extents(x - reach, y - reach, x + reach, y + reach)
