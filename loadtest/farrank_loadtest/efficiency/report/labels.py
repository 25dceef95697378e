"""Put a name beside every point so that none covers another, a point, or the line to one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

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
