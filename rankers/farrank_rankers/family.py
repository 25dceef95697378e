"""The families by name, and their options: their facts that are needed without importing torch."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, get_type_hints

from farrank_rankers.errors import SpecError
from farrank_rankers.json_values import read_value


def check_count(name: str, value: Any, at_least: int, at_most: int | None = None) -> int:
    """Return `value` if it is a whole number between the limits.

    Raises: SpecError naming field, value and limit.
    """
    read_value(int, value, name, SpecError)
    if value < at_least:
        raise SpecError(f"{name} is {value}; it must be at least {at_least}")
    if at_most is not None and value > at_most:
        raise SpecError(f"{name} is {value}; it must be at most {at_most:,}")
    return value


# A typing error must not build a model for hours. Aggregators' transformers are much smaller than this.
MAX_LAYERS = 128
LARGEST_SIZE = 2**20


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """The sizes of a small BERT; the defaults are those of MiniLM's cross-encoder of 6 layers.

    `width` is that of its vectors, `intermediate` that of its feed-forward layers. It has no word embeddings,
    because it reads vectors.
    Raises: SpecError naming field, value and limit.
    """

    layers: int = 6
    heads: int = 12
    width: int = 384
    intermediate: int = 1536
    positions: int = 512

    def __post_init__(self) -> None:
        """Refuse sizes that a BERT cannot have."""
        for name in (field.name for field in fields(self)):
            at_most = MAX_LAYERS if name == "layers" else LARGEST_SIZE
            check_count(name, getattr(self, name), at_least=1, at_most=at_most)
        if self.width % self.heads:
            raise SpecError(f"heads is {self.heads}; it must divide the width of {self.width}")


# cross-encoder/ms-marco-MiniLM-L-6-v2 and -L-2-v2, from which the paper's aggregators start.
MINILM_L6 = TransformerShape()
MINILM_L2 = TransformerShape(layers=2)


Plan = Literal["pair", "dual"]
# The framing of texts: by a plan's tokenizer, or by a prompt.
ReadAs = Literal["pair", "dual", "prompt"]
ChunkingKind = Literal["first", "disjoint", "sliding"]
Aggregation = Literal["first", "mean", "max", "sum"]
# Of windows whose tokens are compared: the best tokens of all windows, the best window, or the first.
WindowAggregation = Literal["union", "max", "first"]
Pooling = Literal["mean", "cls"]
# Of bi-encoders.
TextPooling = Literal["mean", "cls", "last"]


class EvidenceKind(enum.Enum):
    """The meaning of an aggregator's chunk scores; for each of them the highest marks the deciding chunk."""

    CHUNK_SCORE = "chunk_score"  # the score of the chunk alone, on the scale of documents' scores
    ATTENTION = "attention"  # the weight that the aggregator gave the chunk
    LEAVE_ONE_OUT = "leave_one_out"  # how much the document's score falls without the chunk


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one family, besides the fields that all share; a family without options has no fields.

    Fields in `UNSAID` were added later: they are not written at their defaults, because versions are hashes
    of the written text.
    """

    UNSAID: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        """Hold every field to its annotated type or its listed values."""
        hints = get_type_hints(type(self))
        for name, hint in ((each.name, hints[each.name]) for each in fields(self)):
            read_value(hint, getattr(self, name), name, SpecError)

    def chunk_positions(self, query_tokens: int) -> int | None:
        """Count the chunks for which the aggregator has trained positions; None if it needs none.

        `query_tokens` is the longest query.
        """
        return None


# The option of aggregators with positions for chunks: the number of chunks that they were trained for; None
# means as many as they have positions.
_TRAINED_CHUNKS = frozenset({"trained_chunks"})


def _chunk_positions(positions: int, trained_chunks: int | None, use_separators: bool, parts: int = 1) -> int:
    """Count the chunks that a transformer over several parts reads besides its learned vectors."""
    room = positions - (2 + parts if use_separators else 1)
    return room if trained_chunks is None else min(room, trained_chunks)


@dataclass(frozen=True, slots=True)
class VectorOptions(Options):
    """The pooling of token vectors to a chunk's vector: the first ([CLS]) or the mean of all."""

    pooling: Pooling = "cls"


@dataclass(frozen=True, slots=True)
class ParadeAttnOptions(VectorOptions):
    """Whether a chunk has one attention weight, or one for each dimension of its vector."""

    per_dimension: bool = False


@dataclass(frozen=True, slots=True)
class ParadeRandOptions(VectorOptions):
    """The aggregator transformer of PARADE Transf-RAND, of its backbone's width and intermediate size.

    `heads` None means the backbone's number. `use_separators` puts learned vectors around the chunks', like
    [SEP] around texts.
    """

    UNSAID = _TRAINED_CHUNKS

    layers: int = 2
    heads: int | None = None
    positions: int = 512
    use_separators: bool = True
    trained_chunks: int | None = None

    def chunk_positions(self, query_tokens: int) -> int:
        """Count the chunks that its transformer reads at most."""
        return _chunk_positions(self.positions, self.trained_chunks, self.use_separators)


@dataclass(frozen=True, slots=True)
class ParadePretrOptions(VectorOptions):
    """The aggregator transformer of PARADE Transf-PRETR, of its checkpoint's size."""

    UNSAID = _TRAINED_CHUNKS

    transformer: TransformerShape = MINILM_L6
    use_separators: bool = True
    trained_chunks: int | None = None

    def chunk_positions(self, query_tokens: int) -> int:
        """Count the chunks that its transformer reads at most."""
        return _chunk_positions(self.transformer.positions, self.trained_chunks, self.use_separators)


@dataclass(frozen=True, slots=True)
class ParadeQueryOptions(Options):
    """The aggregator transformer of PARADE Transf-PRETR-Q, of its checkpoint's size."""

    UNSAID = _TRAINED_CHUNKS

    transformer: TransformerShape = MINILM_L6
    use_separators: bool = True
    trained_chunks: int | None = None

    def chunk_positions(self, query_tokens: int) -> int:
        """Count the chunks for which its transformer has room after the longest query."""
        positions = self.transformer.positions - query_tokens
        return _chunk_positions(positions, self.trained_chunks, self.use_separators, parts=2)


@dataclass(frozen=True, slots=True)
class LateInteractionOptions(Options):
    """The transformers of PARADE Transf-PRETR-LATEIR, each of its checkpoint's size.

    `interaction` reads a query's token vectors with a chunk's; `transformer` reads its outputs for the
    chunks.
    """

    UNSAID = _TRAINED_CHUNKS

    interaction: TransformerShape = MINILM_L2
    transformer: TransformerShape = MINILM_L6
    use_separators: bool = True
    trained_chunks: int | None = None

    def chunk_positions(self, query_tokens: int) -> int:
        """Count the chunks that the transformer over chunks reads at most."""
        return _chunk_positions(self.transformer.positions, self.trained_chunks, self.use_separators)


INSTRUCTION, QUERY, DOCUMENT = "{instruction}", "{query}", "{document}"

# Functions of torch after a linear layer.
Activation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A layer of a head: dense, with an activation, or a LayerNorm. `width` is that of its output.

    A dense layer with a `residual` adds its input, projected to `width` if it has another.
    Raises: SpecError naming field, value and limit.
    """

    kind: Literal["dense", "norm"]
    width: int
    bias: bool = True
    activation: Activation = "identity"
    residual: bool = False

    def __post_init__(self) -> None:
        """Refuse impossible widths."""
        check_count("head: width", self.width, at_least=1, at_most=LARGEST_SIZE)


@dataclass(frozen=True, slots=True)
class Head:
    """The layers from a pair's token vectors, pooled, to its one or two logits.

    Raises: SpecError if the last layer has another width.
    """

    pooling: Pooling
    layers: tuple[HeadLayer, ...]

    def __post_init__(self) -> None:
        """Check the last layer."""
        object.__setattr__(self, "layers", tuple(self.layers))
        labels = self.layers[-1].width if self.layers else 0
        if labels not in (1, 2):
            raise SpecError(f"head.layers end in {labels} labels; they must be 1 (relevance) or 2 (no, yes)")


@dataclass(frozen=True, slots=True)
class CrossEncoderOptions(Options):
    """The aggregation of the logits of a document's chunks to its score, and the text around query and chunk.

    `query_prefix` is a text before each query in the model's training, for example an instruction.
    `template` is a prompt in place of the tokenizer's pair, in parts that are tokenized separately; () means
    the pair. One part has {query}; {document} is at the end of the same or a later part; {instruction} may
    come before the query. Without an instruction the line with {instruction} is left out. `head` replaces the
    classifier's head that transformers builds.
    Raises: SpecError naming the field and its problem.
    """

    UNSAID = frozenset({"query_prefix", "template", "instruction", "head"})

    aggregation: Aggregation = "max"
    query_prefix: str = ""
    template: tuple[str, ...] = ()
    instruction: str = ""
    head: Head | None = None

    @property
    def takes_instruction(self) -> bool:
        """Whether the template has a place for an instruction."""
        return any(INSTRUCTION in part for part in self.template)

    def __post_init__(self) -> None:
        """Check the template, too."""
        Options.__post_init__(self)
        object.__setattr__(self, "template", tuple(self.template))
        if self.template or self.instruction:
            self._check_template()

    def _check_template(self) -> None:
        if self.query_prefix:
            raise SpecError(
                f"query_prefix is {self.query_prefix!r}; it must be empty: "
                "the template has the text before a query"
            )
        whole = "".join(self.template)
        for place in (QUERY, DOCUMENT):
            if whole.count(place) != 1:
                raise SpecError(f"template has {place} {whole.count(place)} times; it must have it once")
        if whole.index(DOCUMENT) < whole.index(QUERY):
            raise SpecError(f"template has {DOCUMENT} before {QUERY}; it must come after it")
        if not any(part.endswith(DOCUMENT) for part in self.template):
            raise SpecError(
                f"template has text after {DOCUMENT} in the same part; it must be a separate part"
            )
        if INSTRUCTION in whole[whole.index(QUERY) :] or whole.count(INSTRUCTION) > 1:
            raise SpecError(f"template has {INSTRUCTION} more than once or after {QUERY}")
        if self.instruction and INSTRUCTION not in whole:
            raise SpecError(f"instruction is {self.instruction!r}; the template has no {INSTRUCTION} for it")
        (line,) = [line for line in "\n".join(self.template).split("\n") if INSTRUCTION in line] or [""]
        if not self.instruction and (QUERY in line or DOCUMENT in line):
            raise SpecError(f"instruction is empty; the line of {INSTRUCTION} must then hold no other text")


@dataclass(frozen=True, slots=True)
class YesNoOptions(CrossEncoderOptions):
    """The prompt of a language model about query and document, and the tokens of its answers.

    The template's parts are those of the model's published code. `yes` and `no` are tokens; a document's
    score is the logit of yes minus that of no, or the logit of yes alone if `no` is None.
    Raises: SpecError naming the field and its problem.
    """

    UNSAID = frozenset({"query_prefix", "head"})

    template: tuple[str, ...] = (
        "{instruction}\nQuery: {query}\nDocument: {document}",
        "\nIs the document relevant to the query? Answer yes or no:",
    )
    yes: str = "yes"
    no: str | None = "no"

    def __post_init__(self) -> None:
        """Check the template and the answers."""
        CrossEncoderOptions.__post_init__(self)
        if not self.template:
            raise SpecError(f"template is empty; it must have {QUERY} and {DOCUMENT}")
        if not self.yes or self.no in ("", self.yes):
            raise SpecError(f"yes is {self.yes!r} and no {self.no!r}; they must be two tokens")


@dataclass(frozen=True, slots=True)
class BiEncoderOptions(Options):
    """The pooling of token vectors to one vector, and the aggregation of a document's chunks to its score.

    `query_prefix` and `document_prefix` are texts before a query and before each chunk in the model's
    training ("query: "); their tokens count against the backbone's positions, not against the windows.
    `position_step` stretches inputs that would fit a backbone with 1 / step of the positions: their tokens
    take every step-th position (8 for dwzhu/e5-base-4k, whose 4,096 positions were extended from 512).
    `truncate_dim` is the number of first dimensions to keep of a vector, before it is normalised; None keeps
    all. Source: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022.
    `head` are layers between pooling and these steps.
    """

    UNSAID = frozenset({"truncate_dim", "head"})

    pooling: TextPooling = "mean"
    normalize: bool = True
    aggregation: Aggregation = "max"
    query_prefix: str = ""
    document_prefix: str = ""
    position_step: int = 1
    truncate_dim: int | None = None
    head: tuple[HeadLayer, ...] = ()

    def __post_init__(self) -> None:
        """Check step and dimensions, too."""
        Options.__post_init__(self)
        object.__setattr__(self, "head", tuple(self.head))
        check_count("position_step", self.position_step, at_least=1)
        if self.truncate_dim is not None:
            check_count("truncate_dim", self.truncate_dim, at_least=1)


@dataclass(frozen=True, slots=True)
class MaxSimOptions(Options):
    """How texts become token vectors, and how MaxSim compares them.

    `query_marker` and `document_marker` are the ids of a token at the beginning of every input, after its
    first special token; None means none. `query_prefix` and `document_prefix` are texts behind it. A query's
    input of fewer than `expand_to` tokens is filled up with `expansion_token`; the other tokens attend to
    these only if `expansion_attended`. `skipped` are ids whose vectors are not compared in documents. `head`
    are dense layers on each token's vector, which is then normalised to length 1 if `normalize`.
    `aggregation` says how the windows of a long document count: each query token's best token of all of them
    (union), the best window (max), or the first. With `mean` a score is divided by the number of the query's
    vectors.
    `text_head` are dense layers on the mean of a text's token vectors. They make a vector of the text, twice
    as wide as a token's and of length 1, whose halves stand in the places of the text's first and last token.
    A window's score is then the mean of two: the product of such vectors, and the mean MaxSim of the other
    tokens. Of a document with more windows than `compared_windows`, this number has its tokens compared:
    those with the largest product. Other windows' tokens count 0. None compares all.
    Raises: SpecError naming the field and its problem.
    Sources: Khattab & Zaharia, "ColBERT", SIGIR 2020; one encoding for the vectors of a text and of its
    tokens: Chen et al., "M3-Embedding", ACL Findings 2024.
    """

    UNSAID = frozenset({"text_head", "compared_windows"})

    query_marker: int | None = None
    document_marker: int | None = None
    query_prefix: str = ""
    document_prefix: str = ""
    expand_to: int = 0
    expansion_token: int | None = None
    expansion_attended: bool = False
    skipped: tuple[int, ...] = ()
    head: tuple[HeadLayer, ...] = ()
    normalize: bool = True
    aggregation: WindowAggregation = "union"
    mean: bool = False
    text_head: tuple[HeadLayer, ...] = ()
    compared_windows: int | None = None

    def __post_init__(self) -> None:
        """Check the tokens and the expansion, too."""
        Options.__post_init__(self)
        for name in ("skipped", "head", "text_head"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("query_marker", "document_marker", "expansion_token"):
            if (token := getattr(self, name)) is not None:
                check_count(name, token, at_least=0)
        for token in self.skipped:
            check_count("skipped", token, at_least=0)
        check_count("expand_to", self.expand_to, at_least=0, at_most=LARGEST_SIZE)
        if self.expand_to and self.expansion_token is None:
            raise SpecError(f"expansion_token is none; it must be a token: expand_to is {self.expand_to}")
        if self.text_head:
            for name, wanted in (
                ("aggregation", "max"),
                ("mean", True),
                ("normalize", True),
                ("expand_to", 0),
            ):
                if (found := getattr(self, name)) != wanted:
                    raise SpecError(f"{name} is {found!r}; it must be {wanted!r} with a text_head")
        if self.compared_windows is not None:
            check_count("compared_windows", self.compared_windows, at_least=1)
            if not self.text_head:
                raise SpecError(
                    f"compared_windows is {self.compared_windows}; it needs a text_head, which chooses them"
                )

    def tokens(self) -> tuple[int, ...]:
        """List the ids of tokens that the options name."""
        named = (self.query_marker, self.document_marker, self.expansion_token)
        return (*self.skipped, *(token for token in named if token is not None))


@dataclass(frozen=True, slots=True)
class Family:
    """One family's row: how its texts are read, and where its classes are. Its name is written nowhere else.

    `encoder` and `aggregator` name a class as "module:Class"; a module that begins with a dot is in
    `farrank_rankers.families`. The classes are subclasses of `encoder.Encoder` and `aggregate.Aggregator`,
    built as `cls(spec, config)` with the backbone's parsed config.json, and imported only then: see
    `families.classes`.
    `whole`: the only window of a document is as long as the backbone allows.
    `framed_as_pairs` is for a dual plan derived from pairs: each text is framed as the second of a pair whose
    first is empty ("[CLS] [SEP] text [SEP]"), and has a pair's default limits.
    `classifier`: the backbone is a published cross-encoder, with its head and a pair's frame.
    `prompted`: a template surrounds the texts (see `YesNoOptions`), not special tokens.
    `aggregation` computes a document's score from chunk scores; a ranker of another family with chunk scores
    can be opened with it by this family's name ("maxp" over a cross-encoder's logits).
    `compares_tokens`: the aggregator compares the query's tokens with those of all chunks. `rounding` is the
    largest change of a score in fp32 from another order of additions, which depends on batching.
    """

    plan: Plan
    chunking: ChunkingKind
    options: type[Options]
    encoder: str
    aggregator: str
    whole: bool = False
    framed_as_pairs: bool = False
    classifier: bool = False
    prompted: bool = False
    aggregation: Aggregation | None = None
    compares_tokens: bool = False
    rounding: float = 1e-5

    @property
    def reads_as(self) -> ReadAs:
        """The framing that determines the texts' special tokens and default limits."""
        if self.prompted:
            return "prompt"
        return "pair" if self.framed_as_pairs else self.plan

    def reads_with(self, options: Options) -> ReadAs:
        """The framing with these options, which may have a template of their own."""
        return "prompt" if getattr(options, "template", ()) else self.reads_as


_VECTORS, _STATES = ".passages:VectorEncoder", ".cedr:HiddenStatesEncoder"
_INTERACTION = partial(Family, "pair", "disjoint", Options, compares_tokens=True)
_TRANSFORMER = partial(Family, "pair", "sliding")

FAMILIES: Mapping[str, Family] = {
    "firstp": Family("pair", "first", VectorOptions, _VECTORS, ".passages:FirstP", aggregation="first"),
    "longp": Family(
        "pair", "first", VectorOptions, _VECTORS, ".passages:LongP", whole=True, aggregation="first"
    ),
    "avgp": Family("pair", "disjoint", VectorOptions, _VECTORS, ".passages:AvgP", aggregation="mean"),
    "maxp": Family("pair", "sliding", VectorOptions, _VECTORS, ".passages:MaxP", aggregation="max"),
    "sump": Family("pair", "sliding", VectorOptions, _VECTORS, ".passages:SumP", aggregation="sum"),
    # A kernel of width 0.001 turns the last digit of a cosine into 6e-5 of the score, for each query token.
    "cedr-knrm": _INTERACTION(_STATES, ".cedr:CedrKnrm", rounding=3e-4),
    "cedr-pacrr": _INTERACTION(_STATES, ".cedr_pacrr:CedrPacrr"),
    "cedr-drmm": _INTERACTION(_STATES, ".cedr:CedrDrmm"),
    "neural-model1": _INTERACTION(".neural_model1:ProjectedTokenEncoder", ".neural_model1:NeuralModel1"),
    "parade-avg": Family("pair", "sliding", VectorOptions, _VECTORS, ".parade:ParadeAvg"),
    "parade-max": Family("pair", "sliding", VectorOptions, _VECTORS, ".parade:ParadeMax"),
    "parade-attn": Family("pair", "sliding", ParadeAttnOptions, _VECTORS, ".parade:ParadeAttn"),
    "parade-transf-rand": _TRANSFORMER(ParadeRandOptions, _VECTORS, ".parade_transformer:ParadeTransfRand"),
    "parade-transf-pretr": _TRANSFORMER(
        ParadePretrOptions, _VECTORS, ".parade_transformer:ParadeTransfPretr"
    ),
    "parade-transf-pretr-q": _TRANSFORMER(
        ParadeQueryOptions, ".parade_transformer:PairEncoder", ".parade_transformer:ParadeTransfQuery"
    ),
    "parade-transf-pretr-lateir": Family(
        "dual",
        "sliding",
        LateInteractionOptions,
        ".late_interaction:TokenEncoder",
        ".late_interaction:LateInteraction",
        framed_as_pairs=True,
    ),
    "cross-encoder": Family(
        "pair",
        "sliding",
        CrossEncoderOptions,
        ".cross_encoder:LogitEncoder",
        ".cross_encoder:LogitAggregator",
        classifier=True,
    ),
    "yes-no": Family(
        "pair",
        "sliding",
        YesNoOptions,
        ".yes_no:AnswerEncoder",
        ".cross_encoder:LogitAggregator",
        prompted=True,
    ),
    "maxsim": Family(
        "dual",
        "disjoint",
        MaxSimOptions,
        ".maxsim:TokenVectorEncoder",
        ".maxsim:MaxSim",
        compares_tokens=True,
    ),
    "biencoder": Family(
        "dual", "sliding", BiEncoderOptions, ".biencoder:TextEncoder", ".biencoder:SimilarityAggregator"
    ),
}

# Other packages offer families by entry points of this group: the family's name = "module:ROW", a `Family`.
ENTRY_POINTS = "farrank.families"


def family_named(name: str) -> Family:
    """Find a family, here or in another package.

    Raises: SpecError that lists the known names, or names the problem of another package's row.
    """
    if isinstance(name, str) and (found := FAMILIES.get(name) or _from_another_package(name)):
        return found
    known = ", ".join([*FAMILIES, *sorted(entry_points(group=ENTRY_POINTS).names)])
    raise SpecError(f"family is {name!r}; it must be one of {known}")


@cache
def _from_another_package(name: str) -> Family | None:
    offered = entry_points(group=ENTRY_POINTS)
    if name not in offered.names:
        return None
    try:
        row = offered[name].load()
    except (ImportError, AttributeError) as error:
        raise SpecError(f"family {name}: {offered[name].value} cannot be imported: {error}") from error
    if not isinstance(row, Family):
        raise SpecError(f"family {name}: {offered[name].value} is {row!r}; it must be a Family")
    return row


# Several rankers that answer as one, without its own model: see `farrank_rankers.ensemble`.
ENSEMBLE = "ensemble"
