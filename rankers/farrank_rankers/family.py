"""The families by name, and their options: what of each must be known without importing torch."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

from farrank_rankers.errors import SpecError


def check_count(name: str, value: object, at_least: int, at_most: int | None = None) -> int:
    """Return `value` if it is a whole number between the limits.

    Raises: SpecError naming field, value and limit.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{name} is {value!r}; it must be a whole number")
    if value < at_least:
        raise SpecError(f"{name} is {value}; it must be at least {at_least}")
    if at_most is not None and value > at_most:
        raise SpecError(f"{name} is {value}; it must be at most {at_most:,}")
    return value


# A slip of the pen must not build a model for hours: no transformer of an aggregator comes near these.
MOST_LAYERS = 128
LARGEST_SIZE = 2**20


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """What a BERT must have for its checkpoint to fit; the defaults are MiniLM's cross-encoder of 6 layers.

    `width` is that of its vectors, `intermediate` that of its feed-forward layers. It has no word embeddings:
    vectors take their place.
    Raises: SpecError naming field, value and limit.
    """

    layers: int = 6
    heads: int = 12
    width: int = 384
    intermediate: int = 1536
    positions: int = 512

    def __post_init__(self) -> None:
        """Refuse sizes that make no BERT."""
        for name in (field.name for field in fields(self)):
            at_most = MOST_LAYERS if name == "layers" else LARGEST_SIZE
            check_count(name, getattr(self, name), at_least=1, at_most=at_most)
        if self.width % self.heads:
            raise SpecError(f"heads is {self.heads}; it must divide the width of {self.width}")


# cross-encoder/ms-marco-MiniLM-L-6-v2 and -L-2-v2, from which the paper's aggregators start.
MINILM_L6 = TransformerShape()
MINILM_L2 = TransformerShape(layers=2)


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
            elif type(value) not in (allowed := get_args(hint) or (hint,)):
                named = " or ".join("None" if kind is NoneType else kind.__name__ for kind in allowed)
                raise SpecError(f"{name} is {value!r}; it must be of type {named}")


@dataclass(frozen=True, slots=True)
class VectorOptions(Options):
    """How token vectors become a chunk's one vector: the first ([CLS]) or the mean of all."""

    pooling: Pooling = "cls"


@dataclass(frozen=True, slots=True)
class ParadeAttnOptions(VectorOptions):
    """Whether a chunk has one attention weight, or one for each dimension of its vector."""

    per_dimension: bool = False


@dataclass(frozen=True, slots=True)
class ParadeRandOptions(VectorOptions):
    """The aggregator transformer of PARADE Transf-RAND, of its backbone's width and intermediate size.

    `heads` is None for as many as the backbone has. `use_separators` puts learned vectors around the chunks',
    as [SEP] stands around texts.
    """

    layers: int = 2
    heads: int | None = None
    positions: int = 512
    use_separators: bool = True


@dataclass(frozen=True, slots=True)
class ParadePretrOptions(VectorOptions):
    """The aggregator transformer of PARADE Transf-PRETR, of its checkpoint's size."""

    transformer: TransformerShape = MINILM_L6
    use_separators: bool = True


@dataclass(frozen=True, slots=True)
class ParadeQueryOptions(Options):
    """The aggregator transformer of PARADE Transf-PRETR-Q, of its checkpoint's size."""

    transformer: TransformerShape = MINILM_L6
    use_separators: bool = True


@dataclass(frozen=True, slots=True)
class LateInteractionOptions(Options):
    """The transformers of PARADE Transf-PRETR-LATEIR, each of its checkpoint's size.

    `interaction` reads a query's token vectors with a chunk's, `transformer` what it makes of the chunks.
    """

    interaction: TransformerShape = MINILM_L2
    transformer: TransformerShape = MINILM_L6
    use_separators: bool = True


@dataclass(frozen=True, slots=True)
class CrossEncoderOptions(Options):
    """How the logits of a document's chunks become its score."""

    aggregation: Aggregation = "max"


@dataclass(frozen=True, slots=True)
class BiEncoderOptions(Options):
    """How token vectors become one vector, and the vectors of a document's chunks its score.

    `query_prefix` and `document_prefix` are texts that the model was trained to see before a query and before
    each chunk ("query: "); their tokens count against the backbone's positions, not against the windows.
    `position_step` stretches inputs that a backbone of 1 / step as many positions could hold: their tokens
    take every step-th position (8 for dwzhu/e5-base-4k, whose 4,096 positions were 512 once).
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    aggregation: Aggregation = "max"
    query_prefix: str = ""
    document_prefix: str = ""
    position_step: int = 1

    def __post_init__(self) -> None:
        """Hold the step to its limit, too."""
        Options.__post_init__(self)
        check_count("position_step", self.position_step, at_least=1)


@dataclass(frozen=True, slots=True)
class Family:
    """What the readers of text and specs know of a family; its model is in `farrank_rankers.families`.

    `whole` makes the default window as long as a document may be.
    `framed_as_pairs` is for a dual plan that grew out of a pair's: each text is framed as the second of a
    pair whose first is empty ("[CLS] [SEP] text [SEP]"), and has a pair's default limits.
    """

    plan: Plan
    chunking: ChunkingKind
    options: type[Options] = Options
    whole: bool = False
    framed_as_pairs: bool = False

    @property
    def reads_as(self) -> Plan:
        """The plan by whose special tokens and default limits texts are read."""
        return "pair" if self.framed_as_pairs else self.plan


FAMILIES: Mapping[str, Family] = {
    "firstp": Family("pair", "first", VectorOptions),
    "longp": Family("pair", "first", VectorOptions, whole=True),
    "avgp": Family("pair", "disjoint", VectorOptions),
    "maxp": Family("pair", "sliding", VectorOptions),
    "sump": Family("pair", "sliding", VectorOptions),
    "cedr-knrm": Family("pair", "disjoint"),
    "cedr-pacrr": Family("pair", "disjoint"),
    "cedr-drmm": Family("pair", "disjoint"),
    "neural-model1": Family("pair", "disjoint"),
    "parade-avg": Family("pair", "sliding", VectorOptions),
    "parade-max": Family("pair", "sliding", VectorOptions),
    "parade-attn": Family("pair", "sliding", ParadeAttnOptions),
    "parade-transf-rand": Family("pair", "sliding", ParadeRandOptions),
    "parade-transf-pretr": Family("pair", "sliding", ParadePretrOptions),
    "parade-transf-pretr-q": Family("pair", "sliding", ParadeQueryOptions),
    "parade-transf-pretr-lateir": Family("dual", "sliding", LateInteractionOptions, framed_as_pairs=True),
    "cross-encoder": Family("pair", "sliding", CrossEncoderOptions),
    "biencoder": Family("dual", "sliding", BiEncoderOptions),
}

# Several rankers that answer as one: no model of its own, see `farrank_rankers.ensemble`.
ENSEMBLE = "ensemble"

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
