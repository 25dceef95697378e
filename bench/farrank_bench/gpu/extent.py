"""How much is measured: enough for a figure, or only enough to see that it runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of all sections; times in seconds.

    A speed is that of `passes` over the documents, `repeats` times. `calls` are sent one by one; a loaded
    server has `callers`, settles for `settling_s` and is watched for `load_s`. The ceilings have matrices of
    `side` and copies of `copied` bytes, `times` times over. No part of a section takes longer than `limit_s`.
    """

    documents: int
    repeats: int
    passes: int
    calls: int
    queries: int
    callers: int
    settling_s: float
    load_s: float
    side: int
    copied: int
    times: int
    limit_s: float


FULL = Extent(100, 5, 10, 20, 6, 16, 5.0, 30.0, 8192, 2**30, 20, 900.0)
QUICK = Extent(100, 1, 2, 3, 2, 16, 2.0, 5.0, 8192, 2**28, 5, 300.0)
# For tiny models on any device: nothing here says how fast anything is.
TINY = Extent(3, 1, 1, 1, 1, 2, 0.1, 0.5, 64, 2**16, 1, 300.0)
