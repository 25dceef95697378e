"""What a caller may change of a ranker when opening it."""

from dataclasses import replace
from typing import TypedDict

from farrank_rankers.default_chunking import adjusted, default_chunking
from farrank_rankers.errors import SpecError
from farrank_rankers.family import AGGREGATION_BY_NAME, BiEncoderOptions, CrossEncoderOptions, family_named
from farrank_rankers.position_budget import PositionBudget
from farrank_rankers.spec import RankerSpec


class Overrides(TypedDict, total=False):
    """Keywords of `open_reader` and `open_ranker`; None is the same as not given.

    family: how a cross-encoder's or bi-encoder's chunk scores become a document's, by the names firstp (the
    first), avgp (mean, disjoint chunks), maxp and sump (maximum and sum, sliding windows).
    window, stride, max_document_tokens, max_query_tokens, pad_query_to: in tokens.
    revision, download: for names on the hub.
    """

    family: str | None
    window: int | None
    stride: int | None
    max_document_tokens: int | None
    max_query_tokens: int | None
    pad_query_to: int | None
    revision: str | None
    download: bool


def overridden(spec: RankerSpec, overrides: Overrides, budget: PositionBudget) -> RankerSpec:
    """Change what was given; chunks of another kind than the spec's get that kind's default window.

    Raises: SpecError naming field, value and limit.
    """
    max_query_tokens, pad_query_to = overrides.get("max_query_tokens"), overrides.get("pad_query_to")
    spec = replace(
        spec,
        max_query_tokens=spec.max_query_tokens if max_query_tokens is None else max_query_tokens,
        pad_query_to=spec.pad_query_to if pad_query_to is None else pad_query_to,
    )
    spec = _with_family(spec, overrides.get("family"), budget)
    chunking = adjusted(
        spec.chunking,
        window=overrides.get("window"),
        stride=overrides.get("stride"),
        max_document_tokens=overrides.get("max_document_tokens"),
    )
    return replace(spec, chunking=chunking)


def _with_family(spec: RankerSpec, name: str | None, budget: PositionBudget) -> RankerSpec:
    """Aggregate chunk scores another way.

    Raises: SpecError if the ranker has no chunk scores of its own, or the name is unknown.
    """
    if name is None or name == spec.family:
        return spec
    options = spec.options
    if not isinstance(options, (CrossEncoderOptions, BiEncoderOptions)):
        raise SpecError(
            f"family is {name!r}; this ranker was trained as {spec.family} and opens as nothing else"
        )
    if name not in AGGREGATION_BY_NAME:
        known = ", ".join([spec.family, *AGGREGATION_BY_NAME])
        raise SpecError(f"family is {name!r}; over a {spec.family}'s chunk scores it must be one of {known}")
    aggregation, kind = AGGREGATION_BY_NAME[name]
    chunking = spec.chunking
    if kind != chunking.kind:
        family = family_named(spec.family)
        room = budget.left_for_window(family, max(spec.max_query_tokens, spec.pad_query_to or 0), options)
        chunking = default_chunking(family.reads_as, kind, room)
    return replace(spec, options=replace(options, aggregation=aggregation), chunking=chunking)
