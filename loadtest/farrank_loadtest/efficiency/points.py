"""The plot's points: what was measured, joined with the gain and with what the papers publish."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from farrank_loadtest.efficiency.gains import Gain
from farrank_loadtest.efficiency.pairs import Pair
from farrank_loadtest.efficiency.published import PUBLISHED, Published
from farrank_loadtest.efficiency.result import Measured
from farrank_rankers.family import family_named
from farrank_rankers.spec import RankerSpec

Approach = Literal["chunks, aggregated", "chunks, tokens interact", "one long input", "query apart"]
# Families that compare the query's tokens with those of all chunks.
_INTERACTION = ("cedr-drmm", "cedr-knrm", "cedr-pacrr", "neural-model1")


@dataclass(frozen=True, slots=True)
class Point:
    """One ranker."""

    approach: Approach
    measured: Measured
    gain: Gain
    published: Published

    @property
    def published_run_time(self) -> float | None:
        """The middle of the papers' values; None where they give none."""
        return None if self.published.run_time is None else sum(self.published.run_time) / 2

    @property
    def moved(self) -> float | None:
        """Our run time over the papers'."""
        theirs = self.published_run_time
        return None if theirs is None else self.measured.run_time / theirs

    @property
    def why(self) -> str:
        """What the run time is made of: its factors, as measured."""
        measured = self.measured
        parts = [
            f"{measured.inputs:.3g}× inputs",
            f"{measured.tokens:.3g}× positions ({measured.tokens_if_padded:.3g}× if all were padded)",
            f"{measured.cost_of_token:.3g}× the time a position",
        ]
        if measured.aggregator_share >= 0.005:
            parts.append(f"aggregator {measured.aggregator_share:.0%}")
        return ", ".join(parts)


def make_points(
    measured: Mapping[str, Measured], gains: Mapping[str, Gain], pairs: Mapping[str, Pair]
) -> list[Point]:
    """Join what is known of each ranker, in the order of the papers' models."""
    return [
        Point(approach_of(pair.ranker.spec), measured[name], gains[name], PUBLISHED[name])
        for name, pair in pairs.items()
        if name in measured
    ]


def approach_of(spec: RankerSpec) -> Approach:
    """Say how a ranker gets from a long document to a score."""
    family = family_named(spec.family)
    if family.plan == "dual":
        return "query apart"
    if family.whole:
        return "one long input"
    return "chunks, tokens interact" if spec.family in _INTERACTION else "chunks, aggregated"
