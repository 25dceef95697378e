"""The families by name: what of each must be known without importing torch."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin, get_type_hints

from farrank_rankers.errors import SpecError

Plan = Literal["pair", "dual"]
ChunkingKind = Literal["first", "disjoint", "sliding"]
Aggregation = Literal["first", "mean", "max", "sum"]
Pooling = Literal["mean", "cls"]


class EvidenceKind(enum.Enum):
    """What an aggregator's chunk scores mean; the chunk with the highest one decided, whichever it is."""

    CHUNK_SCORE = "chunk_score"  # the score that the chunk alone would have, on the scale of the document's
    ATTENTION = "attention"  # the weight that the aggregator gave the chunk
    LEAVE_ONE_OUT = "leave_one_out"  # how much the document's score falls without the chunk


@dataclass(frozen=True, slots=True)
class Options:
    """What one family needs beside the fields that all share; a family without such needs has no fields."""

    def __post_init__(self) -> None:
        """Hold every field to its annotated type or its listed values."""
        hints = get_type_hints(type(self))
        for name in (field.name for field in fields(self)):
            value, hint = getattr(self, name), hints[name]
            if get_origin(hint) is Literal:
                if value not in get_args(hint):
                    raise SpecError(f"{name} is {value!r}; it must be one of {', '.join(get_args(hint))}")
            elif type(value) is not hint:
                raise SpecError(f"{name} is {value!r}; it must be of type {hint.__name__}")


@dataclass(frozen=True, slots=True)
class VectorOptions(Options):
    """How token vectors become a chunk's one vector: the first ([CLS]) or the mean of all."""

    pooling: Pooling = "cls"


@dataclass(frozen=True, slots=True)
class CrossEncoderOptions(Options):
    """How the logits of a document's chunks become its score."""

    aggregation: Aggregation = "max"


@dataclass(frozen=True, slots=True)
class BiEncoderOptions(Options):
    """How token vectors become one vector, and the vectors of a document's chunks its score.

    `query_prefix` and `document_prefix` are texts that the model was trained to see before a query and before
    each chunk ("query: "); their tokens count against the backbone's positions, not against the windows.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    aggregation: Aggregation = "max"
    query_prefix: str = ""
    document_prefix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """What the readers of text and specs know of a family; its model is in `farrank_rankers.families`."""

    plan: Plan
    chunking: ChunkingKind
    options: type[Options] = Options


FAMILIES: Mapping[str, Family] = {
    "firstp": Family("pair", "first", VectorOptions),
    "avgp": Family("pair", "disjoint", VectorOptions),
    "maxp": Family("pair", "sliding", VectorOptions),
    "sump": Family("pair", "sliding", VectorOptions),
    "cross-encoder": Family("pair", "sliding", CrossEncoderOptions),
    "biencoder": Family("dual", "sliding", BiEncoderOptions),
}

# What the names of the split-and-aggregate papers mean over chunk scores that a model already gives.
AGGREGATION_BY_NAME: Mapping[str, tuple[Aggregation, ChunkingKind]] = {
    "firstp": ("first", "first"),
    "avgp": ("mean", "disjoint"),
    "maxp": ("max", "sliding"),
    "sump": ("sum", "sliding"),
}


def family_named(name: str) -> Family:
    """Look a family up.

    Raises: SpecError that lists the known names.
    """
    try:
        return FAMILIES[name]
    except (KeyError, TypeError):
        raise SpecError(f"family is {name!r}; it must be one of {', '.join(FAMILIES)}") from None
