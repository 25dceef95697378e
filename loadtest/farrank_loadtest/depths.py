"""Depths of reading as load tests compare them: each ranker has a point for each."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from farrank_client import AdaptiveDepth
from farrank_loadtest.errors import LoadtestError

Depth = Literal["all", "adaptive"] | AdaptiveDepth


def depth_text(depth: Depth) -> str:
    """Write a depth as `--depth` takes it: `all`, `adaptive`, `adaptive,chunks=4`."""
    if not isinstance(depth, AdaptiveDepth):
        return depth
    given = ((name, value) for name, value in asdict(depth).items() if value is not None)
    return ",".join(("adaptive", *(f"{name}={value:g}" for name, value in given)))


def is_adaptive(depth: Depth | None) -> bool:
    """Whether a ranker must be able to read in rounds."""
    return depth not in (None, "all")


def check_depths(depths: Sequence[Depth]) -> None:
    """Check that each depth is given once. Raises: LoadtestError."""
    if twice := next((each for each in depths if depths.count(each) > 1), None):
        raise LoadtestError(f"depth {depth_text(twice)}: is given twice")
