"""The records of a call in the engine: its request, its progress and its result."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import add, attrgetter
from typing import NamedTuple

from farrank_calls.fairness.fair_order import Account
from farrank_calls.telemetry.call_record import NO_CALL, CallRecord
from farrank_indexes.stored_documents import Cut, Spans, StoredTexts
from farrank_rankers.aggregate import SCORE_DECIMALS
from farrank_rankers.ensemble import mean_score
from farrank_rankers.evidence.choosing import DocumentText
from farrank_rankers.evidence.matching import QueryTerms
from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.batcher import QueueItem
from farrank_runtimes.maxsim import BestRows
from farrank_server.config.schema import DepthConfig
from farrank_server.engine.admission.reservations import Reservation
from farrank_server.engine.loaded.document_cache import KnownDocuments
from farrank_server.engine.loaded.ranker import LoadedRanker, Scorer
from farrank_server.engine.stored import NOTHING, Source, Sources

# A time budget is at most this share of the time to the deadline: the call also waits for the device.
TIME_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class InputDocument:
    """A document to score. It has a text, or a place among the data stored with an index, or both.

    A ranker reads the text only if the sources lack the data that it needs. `characters` is the text's
    length.
    """

    characters: int
    text: str | None = None
    sources: Sources | None = None
    place: int = 0

    def source(self, ranker: str) -> Source:
        """The stored data that a ranker reads instead of the text."""
        return NOTHING if self.sources is None else self.sources.source(ranker)

    @property
    def stored_texts(self) -> StoredTexts | None:
        """The texts stored with its index, if there are any."""
        return None if self.sources is None else self.sources.stores.texts

    @property
    def key(self) -> str:
        """A string that identifies the document: its text, or else its index and place."""
        if self.text is not None:
            return self.text
        assert self.sources is not None, "a document without a text stands in an index"
        # Starts with half a surrogate pair, which no text from the wire can contain.
        return f"\ud800{self.sources.stores.index_id}/{self.place}"


class ExpectedDocument(NamedTuple):
    """A document that a call will find in an index, and its estimated length, for admission."""

    characters: int
    sources: Sources | None

    def source(self, ranker: str) -> Source:
        """The stored data that a ranker will read instead of the text."""
        return NOTHING if self.sources is None else self.sources.source(ranker)


AnyDocument = InputDocument | ExpectedDocument


def text_documents(texts: Iterable[str]) -> tuple[InputDocument, ...]:
    """Make documents from texts alone."""
    return tuple(InputDocument(len(text), text) for text in texts)


class TokenMatch(NamedTuple):
    """A token of the query and the most similar one of a document; spans count Unicode code points.

    `start` and `end` are 0 if the most similar vector is that of a special token.
    """

    query_start: int
    query_end: int
    start: int
    end: int
    similarity: float


@dataclass(slots=True, eq=False)
class RerankCall:
    """A validated request of any protocol. Times are seconds of `time.monotonic`.

    `documents` is empty until the documents are found, if the call names them or searches for them. `depth`
    None means each ranker's own. With `comparable_scores` the scores of all rounds compare. `instruction` is
    the task in the rankers' formats; empty means their own. With `token_matches`, the best `top_n` documents
    (None: all) have them. `texts` receives the texts stored with an index, by the document's number, while
    the query is encoded, and `terms` the query's terms once all texts are there; `texts` is None if they are
    not wanted. `version` is the beginning of the version that is asked for. `scorer` is the version that
    answers, from the moment that the engine finds it.
    """

    ranker: str
    query: str
    documents: tuple[InputDocument, ...]
    max_chunks: int | None
    arrival_s: float
    deadline_s: float
    count_tokens: bool = False
    record: CallRecord = NO_CALL
    depth: DepthConfig | None = None
    comparable_scores: bool = False
    instruction: str = ""
    token_matches: bool = False
    top_n: int | None = None
    texts: dict[int, DocumentText] | None = None
    terms: QueryTerms | None = None
    version: str = ""
    scorer: Scorer | None = None

    @property
    def account(self) -> Account:
        """The account that is charged for the call."""
        return self.record.account

    def depth_for(self, ranker: LoadedRanker) -> DepthConfig:
        """How much a ranker reads of each document."""
        depth = self.depth or ranker.depth
        if depth.milliseconds is None:
            return depth
        most = round(1000 * TIME_SHARE * (self.deadline_s - self.arrival_s))
        return replace(depth, milliseconds=max(1, min(depth.milliseconds, most)))


@dataclass(frozen=True, slots=True, eq=False)
class ScoredDocument:
    """A document's score and the evidence of its chunks. Shapes: chunk_scores (C,), spans (C, 2).

    `numbers` are the places of these chunks among all of the document (None: they are the first ones), of
    which were chosen from `chunks_scored`. Documents of a later `round` precede the others, whatever their
    scores. `matches` are the tokens that the query's tokens found, if the call asks for them.
    """

    score: float
    chunk_scores: tuple[float, ...]
    spans: Spans
    cut: Cut
    numbers: Sequence[int] | None = None
    chunks_scored: int = 0
    round: int = 1
    matches: tuple[TokenMatch, ...] = ()

    @property
    def rank(self) -> tuple[int, float]:
        """The key that orders documents, best first."""
        return -self.round, -self.score

    @property
    def deciding_chunk(self) -> int:
        """The chunk with the strongest evidence; the first one if several are equal."""
        return self.chunk_scores.index(max(self.chunk_scores))

    @property
    def deciding_number(self) -> int:
        """The place of that chunk in the document, counted from 0."""
        return self.deciding_chunk if self.numbers is None else self.numbers[self.deciding_chunk]


@dataclass(slots=True)
class Tally:
    """Counts of the tokens and chunks of a call, of its work on the device, and of the time it took.

    `tokens` counts all encoder inputs, including those whose result was cached: a repeated call costs the
    same. `cached_tokens` is the part that needed no encoding.
    `selection_ns` is the processor time in which adaptive depth ordered chunks.
    `scored_chunks` are those from which adaptive depth chose.
    `queue_ns` is the longest wait of an input, including its wait on the device behind another batch.
    `inference_ns` is the summed time of the batches that held its inputs, each from its start on the device.
    """

    tokens: int = 0
    cached_tokens: int = 0
    chunks: int = 0
    scored_chunks: int = 0
    cached_chunks: int = 0
    stored_documents: int = 0
    stored_chunks: int = 0
    query_tokens_cut: int = 0
    tokenization_ns: int = 0
    pairs: int = 0
    padded_tokens: int = 0
    queue_ns: int = 0
    inference_ns: int = 0
    aggregation_ns: int = 0
    selection_ns: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(add, _figures(self), _figures(other)))


# `astuple` would copy deeply, and the event loop adds up one tally per slice.
_figures = attrgetter(*(each.name for each in fields(Tally)))


class Ended(StrEnum):
    """Why a call ended with a finished round before its last one; label values of a metric."""

    DEADLINE = "deadline"
    BUDGET = "budget"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class RerankResult:
    """The answer to a call: one scored document for each document of the call, in the call's order.

    `ended` is set if rounds are missing. `summed_vectors` is the number of the query's vectors over which
    scores are sums; 1 if they are not.
    """

    documents: Sequence[ScoredDocument]
    tally: Tally
    ended: Ended | None = None
    summed_vectors: int = 1

    @property
    def ended_early(self) -> bool:
        """Whether rounds are missing."""
        return self.ended is not None

    @property
    def rounds(self) -> int:
        """The number of finished rounds."""
        return max(document.round for document in self.documents)


def mean_of_members(results: Sequence[RerankResult]) -> RerankResult:
    """Average the scores of an ensemble's members for the same documents, and add up the costs.

    The first member's chunks are the evidence. Members read and wait at the same time, so the maximum of
    these times counts and not their sum.
    """
    documents = []
    for each in zip(*(result.documents for result in results), strict=True):
        score = round(mean_score([found.score for found in each]), SCORE_DECIMALS)
        documents.append(ScoredDocument(score, each[0].chunk_scores, each[0].spans, each[0].cut))
    tallies = [result.tally for result in results]
    total = sum(tallies, Tally())
    total.query_tokens_cut = tallies[0].query_tokens_cut
    total.tokenization_ns = max(tally.tokenization_ns for tally in tallies)
    total.stored_documents = max(tally.stored_documents for tally in tallies)
    total.queue_ns = max(tally.queue_ns for tally in tallies)
    return RerankResult(tuple(documents), total)


@dataclass(slots=True, eq=False)
class ActiveCall:
    """One ranker's part of an admitted call, from its admission to its answer.

    `finished` and `round` belong to the event loop; other threads use `settle` and `end_round`. The fields
    after them belong to the device thread; between two rounds, to a tokenizer thread. `depth` is how much is
    read of each document. `reads_on` says that there may be another round after this one. `best_rows` holds
    the vectors that decided each document's score, by its index, if the call asks for token matches.
    """

    id: int
    call: RerankCall
    ranker: LoadedRanker
    reservation: Reservation
    known: KnownDocuments
    finished: asyncio.Future[None]
    round: asyncio.Future[None] = field(init=False)
    depth: DepthConfig = field(init=False)

    query_features: Features | None = None
    waiting_for_query: list["PendingDocument"] = field(default_factory=list)
    results: dict[int, ScoredDocument] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    unscored: set[int] = field(default_factory=set)
    reads_on: bool = False
    best_rows: dict[int, BestRows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Expect a score for each document."""
        self.unscored.update(range(len(self.call.documents)))
        self.depth = self.call.depth_for(self.ranker)

    @property
    def is_wanted(self) -> bool:
        """Whether the caller still waits for the answer. Any thread may ask."""
        return not self.finished.done()

    @property
    def summed_vectors(self) -> int:
        """The number of the query's vectors over which scores are sums; 1 if they are not."""
        options, query = self.ranker.spec.maxsim, self.query_features
        return 1 if options is None or options.mean or query is None else len(query.vectors)

    @property
    def is_query_alone(self) -> bool:
        """Whether the call wants only the query's vector: it has no document to score."""
        return not self.call.documents

    @property
    def is_answered(self) -> bool:
        """Whether every document has its score. Only the event loop may ask."""
        return self.finished.done() and not self.finished.cancelled() and self.finished.exception() is None

    def ready_with(self, document: "PendingDocument") -> list["PendingDocument"]:
        """Return the documents that can be scored now that all chunks of this one are encoded.

        A document of a dual ranker must wait for the query.
        """
        if self.ranker.is_dual and self.query_features is None:
            self.waiting_for_query.append(document)
            return []
        return [document]

    def query_arrived(self, features: Features) -> list["PendingDocument"]:
        """Keep the encoded query and return the documents that waited only for it."""
        self.query_features = features
        waited, self.waiting_for_query = self.waiting_for_query, []
        return waited

    def score(self, document: "PendingDocument", score: float, evidence: tuple[float, ...]) -> bool:
        """Store a document's score and its rounded evidence.

        Returns whether every document of the round has its score now.
        """
        score = round(score, SCORE_DECIMALS)
        before = self.results.get(document.index)
        if before is not None and self.ranker.spec.scores_grow:
            # Another batch changes a chunk's last digits. The document must not fall below others for that.
            score = max(score, before.score)
        self.results[document.index] = ScoredDocument(
            *(score, evidence, document.spans, document.cut),
            *(document.numbers, document.chunks_scored, document.round),
        )
        self.unscored.discard(document.index)
        return not self.unscored

    def settle(self, error: Exception | None = None) -> None:
        """Finish the call, from any thread: every document has its score, or the call fails with `error`."""

        def settle() -> None:
            # The caller may have gone, or another stage may have failed the call first.
            if self.finished.done():
                return
            if error is None:
                self.finished.set_result(None)
            else:
                self.finished.set_exception(error)

        self.finished.get_loop().call_soon_threadsafe(settle)

    def scored(self) -> tuple[ScoredDocument, ...]:
        """All documents with their scores, in the call's order."""
        return tuple(self.results[index] for index in range(len(self.call.documents)))

    def end_round(self) -> None:
        """Report, from any thread, that every document of the round has its score."""
        self.round.get_loop().call_soon_threadsafe(self.round.set_result, None)

    async def round_ended(self, until_s: float | None) -> bool:
        """Wait until every document of the round has its score. Returns False if time is over before.

        Raises: the error that ends the call.
        """
        timeout_s = None if until_s is None else until_s - time.monotonic()
        ends = self.finished, self.round
        await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self.finished.done() and not self.round.done():
            self.finished.result()
        return self.finished.done() or self.round.done()

    def close(self) -> None:
        """Mark the call as unwanted, so that stages that still work on it stop."""
        if not self.finished.cancel() and not self.finished.cancelled():
            # It may have failed. Read its error, or asyncio logs that it was never retrieved.
            self.finished.exception()


@dataclass(slots=True, eq=False)
class PendingDocument:
    """A document whose chunks are being encoded.

    `features` has a place for each chunk. `tokens` counts the tokens of its encoder inputs. `kept_bytes` is
    the size of the features kept in the device's memory. `whole` holds all features at once if they came from
    the cache or from the index. The last four are for a call that reads in rounds: see `ScoredDocument`;
    `is_kept` says that its features are kept after its score, for the next round.
    """

    call: ActiveCall
    index: int
    spans: Spans
    cut: Cut
    features: list[Features | None]
    missing: int
    tokens: int
    kept_bytes: int = 0
    whole: Features | None = None
    numbers: Sequence[int] | None = None
    chunks_scored: int = 0
    round: int = 1
    is_kept: bool = False


@dataclass(slots=True, eq=False)
class QueuedInput(QueueItem):
    """One encoder input of a call: a chunk of a document, or the query (plan dual only)."""

    call: ActiveCall
    input: EncoderInput
    document: PendingDocument | None = None
    chunk: int = 0
