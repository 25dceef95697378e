"""The spec of a model that was not saved by us."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from farrank_rankers.backbone_facts import BackboneFacts
from farrank_rankers.default_chunking import MAX_QUERY_TOKENS, default_chunking
from farrank_rankers.errors import SourceError
from farrank_rankers.family import CrossEncoderOptions, Options, VectorOptions, family_named
from farrank_rankers.files.location import Location
from farrank_rankers.files.model_files import ModelFiles
from farrank_rankers.files.sentence_transformers import biencoder_options
from farrank_rankers.overrides import Overrides
from farrank_rankers.position_budget import PositionBudget
from farrank_rankers.spec import RankerSpec


def derived_spec(
    files: ModelFiles, location: Location, overrides: Overrides, budget: PositionBudget
) -> RankerSpec:
    """Derive a spec for a cross-encoder or a bi-encoder: the best chunk counts, windows slide.

    Raises: SourceError if the files are a bare backbone, or a classifier that does not rank.
    """
    options: Options
    if files.kind == "cross-encoder":
        check_labels(files.config, location.name)
        options = CrossEncoderOptions()
    elif files.kind == "biencoder":
        options = biencoder_options(files.folder)
    else:
        raise SourceError(
            f"{location.name} is a bare backbone ({files.config['model_type']}): it has neither ranker.json "
            "nor a sequence-classification head nor modules.json; new_ranker makes an untrained ranker of it"
        )
    provenance = {"model": location.name} | ({"revision": location.revision} if location.revision else {})
    return fitted_spec(files.kind, location.name, options, overrides, budget, provenance)


def fitted_spec(
    family: str,
    backbone: str,
    options: Options | None,
    overrides: Overrides,
    budget: PositionBudget,
    provenance: Mapping[str, str],
) -> RankerSpec:
    """Give a family its defaults, smaller where the backbone has fewer positions.

    Raises: SpecError if the family is unknown.
    """
    facts = family_named(family)
    options = default_options(family, budget.backbone) if options is None else options
    given = overrides.get("max_query_tokens")
    max_query_tokens = MAX_QUERY_TOKENS[facts.reads_as] if given is None else given
    if facts.plan == "dual" and given is None:
        room = budget.left_for_query(facts, options)
        max_query_tokens = max_query_tokens if room is None else max(1, min(max_query_tokens, room))
    pad_query_to = overrides.get("pad_query_to")
    room = budget.left_for_window(facts, max(max_query_tokens, pad_query_to or 0), options)
    return RankerSpec(
        family=family,
        backbone=backbone,
        chunking=default_chunking(facts.reads_as, facts.chunking, room, whole=facts.whole),
        max_query_tokens=max_query_tokens,
        pad_query_to=pad_query_to,
        options=options,
        provenance=provenance,
    )


def default_options(family: str, backbone: BackboneFacts) -> Options:
    """Give a family its options, pooled as the backbone was trained to be.

    Raises: SpecError if the family is unknown.
    """
    options = family_named(family).options()
    return replace(options, pooling=backbone.pooling) if isinstance(options, VectorOptions) else options


def check_labels(config: Mapping[str, Any], name: str) -> None:
    """Refuse a classifier whose output is not a relevance.

    Raises: SourceError unless there are one or two labels.
    """
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, Mapping) else config.get("num_labels", 2)
    if count not in (1, 2):
        raise SourceError(f"{name} has {count} labels; a cross-encoder has 1 (relevance) or 2 (no, yes)")
