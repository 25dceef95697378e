"""The answer to a rerank: documents in their new order, with evidence, usage and timings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from farrank.v1 import rerank_pb2 as pb


class FromWire:
    """A dataclass made from a message, whose fields it has by name.

    An optional field that the message lacks is None. Any other field that the server did not send, for
    example an older server, is 0 or empty. A field that this kind of message does not have keeps its default.
    """

    __slots__ = ()

    @classmethod
    def from_pb(cls, message: Message) -> Self:
        """Read it off the wire."""
        values = {}
        for name, read, may_lack in _shared_fields(cls, message.DESCRIPTOR):  # type: ignore[arg-type]  # hashable
            values[name] = None if may_lack and not message.HasField(name) else read(getattr(message, name))
        return cls(**values)


@cache
def _shared_fields(kind: type, message: Descriptor) -> list[tuple[str, Callable[[Any], Any], bool]]:
    """List the fields that a dataclass has in common with a message: name, reader, whether it is optional."""
    return [
        (name, _reader(hint), NoneType in get_args(hint) and message.fields_by_name[name].has_presence)
        for name, hint in get_type_hints(kind).items()
        if name in message.fields_by_name
    ]


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Choose the function that turns a message's value into a field's type."""
    if get_origin(hint) is UnionType:
        hint = get_args(hint)[0]
    if get_origin(hint) is tuple:
        read_one = _reader(get_args(hint)[0])
        return lambda values: tuple(map(read_one, values))
    if get_origin(hint) is Mapping:
        return dict
    reader: Callable[[Any], Any] = hint.from_pb if issubclass(hint, FromWire) else hint
    return reader


class WireEnum(Enum):
    """An enum of the wire. A value that a newer server added counts as UNSPECIFIED, 0."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls(0)


class Evidence(WireEnum):
    """The meaning of a passage's score, which selects the deciding passage."""

    UNSPECIFIED = pb.EVIDENCE_UNSPECIFIED
    """Not set."""
    CHUNK_SCORE = pb.EVIDENCE_CHUNK_SCORE
    """The score that the ranker gives to this chunk alone."""
    ATTENTION = pb.EVIDENCE_ATTENTION
    """The weight with which the aggregator attends to this chunk; a document's weights sum to 1."""
    LEAVE_ONE_OUT = pb.EVIDENCE_LEAVE_ONE_OUT
    """How much the document's score falls when this chunk is left out."""


class ScoreScale(WireEnum):
    """The scale of scores. It never changes the order."""

    UNSPECIFIED = pb.SCORE_SCALE_UNSPECIFIED
    """Not set: RAW."""
    RAW = pb.SCORE_SCALE_RAW
    """As the ranker computes them: a cross-encoder's logit, a bi-encoder's cosine or dot product."""
    SIGMOID = pb.SCORE_SCALE_SIGMOID
    """1 / (1 + exp(-raw)), between 0 and 1: sentence-transformers' default for a cross-encoder."""


class Priority(WireEnum):
    """The purpose of a call. It changes no score."""

    UNSPECIFIED = pb.PRIORITY_UNSPECIFIED
    """Not set: INTERACTIVE."""
    INTERACTIVE = pb.PRIORITY_INTERACTIVE
    """A user waits for the answer."""
    BATCH = pb.PRIORITY_BATCH
    """The call can wait, and does so while there is interactive work."""


@dataclass(frozen=True, slots=True)
class Passage(FromWire):
    """A chunk of a document: characters `start` to `end` (exclusive), its score and the score's meaning.

    Offsets count Unicode code points, as Python's strings do: not bytes, not UTF-16 units.
    """

    start: int
    end: int
    score: float
    evidence: Evidence

    def text_in(self, document_text: str) -> str:
        """Cut the passage out of its document's text."""
        return document_text[self.start : self.end]


@dataclass(frozen=True, slots=True)
class TokenMatch(FromWire):
    """A token of the query, and the most similar token of a document, each as a span of characters.

    `start` and `end` are 0 if the most similar vector is that of a special token. `similarity` is the product
    of the two vectors, with nearly all models their cosine.
    """

    query_start: int
    query_end: int
    start: int
    end: int
    similarity: float


@dataclass(frozen=True, slots=True)
class Sentence(FromWire):
    """A sentence of a document: characters `start` to `end` (exclusive), and its share of the query's words.

    `score` lies between 0 and 1, and compares among all sentences of a call. `text` is the sentence itself,
    empty from an older server.
    """

    start: int
    end: int
    score: float
    text: str = ""

    def text_in(self, document_text: str) -> str:
        """Cut the sentence out of its document's text."""
        return document_text[self.start : self.end]


@dataclass(frozen=True, slots=True)
class FirstStageScore(FromWire):
    """The score of a document in one first stage, on that stage's own scale, and the index's name."""

    index: str
    score: float


@dataclass(frozen=True, slots=True)
class Result(FromWire):
    """One document of a ranking.

    `index` is its position in the request (after a search: in the first stage's order). `score` is higher for
    better documents, and comparable only within one query and ranker. `deciding_passage` is None for a
    document without tokens; `chunks` and `text` are set if the call requested them. `characters_cut` counts
    the characters after the last token that was read; `tokens_cut` is estimated from it, unless the call set
    `count_tokens_cut`. `first_stage_score` is set after a search; `first_stage_scores` has the score of each
    index if several were searched as one. `chunks_read` counts the chunks that the ranker read,
    `chunks_scored` those that adaptive depth chose them from, and `chunks_cut` those beyond a limit.
    Documents of a later `round` precede the others. Scores of different rounds compare only if the ranker
    takes the maximum over chunks. `token_matches` has a match for each token of the query if the call set
    `return_token_matches`. `sentences` has the best ones, best first, if the call asked for them as evidence.
    `characters` is the length of the document's whole text, read or not; 0 also from an older server.
    """

    id: str
    index: int
    score: float
    deciding_passage: Passage | None
    chunks: tuple[Passage, ...]
    text: str | None
    tokens_cut: int
    first_stage_score: float | None
    characters_cut: int = 0
    first_stage_scores: tuple[FirstStageScore, ...] = ()
    chunks_read: int = 0
    chunks_scored: int = 0
    chunks_cut: int = 0
    round: int = 0
    token_matches: tuple[TokenMatch, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    characters: int = 0


@dataclass(frozen=True, slots=True)
class Usage(FromWire):
    """The size and cost of a call; `pairs` and `padded_tokens` count its work on the device.

    `stored_documents` counts documents that were not tokenized, because their index stores tokens or
    encodings. `rounds` counts the finished rounds of adaptive depth, 1 with any other depth; `ended_early`
    says that time, or a failure of the device, ended the call before its last round.
    """

    tokens: int
    chunks: int
    pairs: int
    padded_tokens: int
    cached_chunks: int
    stored_documents: int = 0
    rounds: int = 0
    ended_early: bool = False


@dataclass(frozen=True, slots=True)
class Timings(FromWire):
    """Where the server's time went; stages overlap, so the parts may add up to more than the total.

    `selection_ns` is the processor time in which adaptive depth ordered chunks. In `evidence_ns` sentences
    were chosen.
    """

    total_ns: int
    first_stage_ns: int
    tokenization_ns: int
    queue_ns: int
    inference_ns: int
    aggregation_ns: int
    selection_ns: int = 0
    evidence_ns: int = 0


@dataclass(frozen=True, slots=True)
class RankerVersion(FromWire):
    """The ranker of a call: its name, a version that changes with weights and chunking, and its runtime."""

    name: str
    version: str
    runtime: str = ""
    precision: str = ""


@dataclass(frozen=True, slots=True)
class ContextPiece(FromWire):
    """Sentences that stand beside each other in a document: its id and index, characters `start` to `end`.

    `score` is that of the best sentence, as in `Sentence`.
    """

    id: str
    index: int
    start: int
    end: int
    score: float
    text: str


@dataclass(frozen=True, slots=True)
class Ranking(FromWire):
    """Documents, best first; equal scores keep the order of the request.

    `query_tokens_cut` counts the query's tokens beyond the ranker's limit; `index` names the searched index,
    None if the caller sent the documents. `context` is the evidence of all results in the order of the
    results and of the texts, if the call set `context_tokens`.
    """

    results: tuple[Result, ...]
    query_tokens_cut: int
    usage: Usage
    timings: Timings
    ranker: RankerVersion
    index: str | None = None
    score_scale: ScoreScale = ScoreScale.UNSPECIFIED
    context: tuple[ContextPiece, ...] = ()

    def run_scores(self) -> list[float]:
        """Give each result a score that sorts it as it is ranked, for a TREC run, in the results' order.

        These are the results' own scores, if they are sorted by score. For most families the scores of
        different rounds of adaptive depth do not compare: each result then gets the number of results from
        its place on.
        """
        scores = [result.score for result in self.results]
        if all(before >= after for before, after in pairwise(scores)):
            return scores
        return [float(len(scores) - place) for place in range(len(scores))]
