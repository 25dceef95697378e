"""A loaded ranker with everything that its calls need, and an ensemble of rankers that acts as one."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from farrank_rankers.calibration import Calibration
from farrank_rankers.ensemble import ensemble_version
from farrank_rankers.exports.manifest import ExportParity
from farrank_rankers.family import EvidenceKind
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.batcher import BatchPolicy
from farrank_runtimes.runtime import Capabilities, Runtime
from farrank_server.config.schema import DepthConfig
from farrank_server.engine.admission.estimates import Speeds, TokenDensity
from farrank_server.engine.admission.reservations import RankerWork
from farrank_server.engine.loaded.document_cache import DocumentCache

# A lower bound of tokens per character: prose has two to three times as many.
MIN_DENSITY = 0.1


class AskedCall(Protocol):
    """The parts of a call that its work is estimated from, besides its documents."""

    query: str
    instruction: str
    max_chunks: int | None


@dataclass(slots=True, eq=False)
class LoadedRanker:
    """A ranker, its runtime and its measured speed.

    Rankers that differ only in the limit on a document's tokens have the same `encodings_version`.
    `runtime` belongs to the device thread and is absent while the device is being recovered. Other
    threads read its `capabilities` here. `load` makes a new runtime; at the start it took `load_s`.
    `check_score` raises ConfigError if a runtime's scores are not finite. `probe` is an input known to be
    good. `runtime_reason` says why this runtime was chosen. `parity` says how closely an export matches
    its ranker. `depth` is that of calls that ask for none. `key` tells versions of one name apart inside
    the engine. `calls` counts the calls that use the ranker now; the last one ended at `used_s`.
    """

    name: str
    version: str
    encodings_version: str
    spec: RankerSpec
    reader: Reader
    evidence: EvidenceKind
    runtime: Runtime
    capabilities: Capabilities
    load: Callable[[], Runtime]
    check_score: Callable[[Runtime], None]
    load_s: float
    policy: BatchPolicy
    speeds: Speeds
    cache: DocumentCache | None
    probe: EncoderInput
    runtime_reason: str = ""
    parity: ExportParity | None = None
    density: TokenDensity = field(default_factory=TokenDensity)
    depth: DepthConfig = field(default_factory=DepthConfig)
    key: str = ""
    calls: int = 0
    used_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Give the only version of a name the name as its key."""
        self.key = self.key or self.name

    def release(self) -> None:
        """Close the runtime. Called before a new one is loaded, so that the device never holds both."""
        if hasattr(self, "runtime"):
            self.runtime.close()
            del self.runtime

    def reload(self) -> None:
        """Load a new runtime and warm it up."""
        self.runtime = self.load()
        self.capabilities = self.runtime.capabilities()

    def tokens_per_s(self) -> float:
        """The measured speed of the encoder."""
        return self.speeds.encoding.per_s

    @property
    def members(self) -> "tuple[LoadedRanker]":
        """The ranker itself: it is its only member."""
        return (self,)

    @property
    def is_dual(self) -> bool:
        """Whether query and chunks are encoded separately."""
        return self.spec.plan == "dual"

    @property
    def cache_name(self) -> str:
        """Everything except the text that encodings depend on. Precisions of the same weights differ, too."""
        return f"{self.version}/{self.capabilities.runtime}/{self.capabilities.precision}"

    @property
    def document_calibration(self) -> Calibration:
        """Maps a document's raw score to a score between 0 and 1."""
        return self.spec.document_calibration

    @property
    def chunk_calibration(self) -> Calibration:
        """Maps a chunk's raw score to a score between 0 and 1."""
        return self.spec.chunk_calibration

    def tokens_read(self, max_chunks: int | None, depth: DepthConfig) -> int:
        """Bound how many tokens of a document are read, be it only to choose among its chunks."""
        limit = self.spec.chunking.max_document_tokens
        return limit if depth.is_adaptive else self.spec.readable_tokens(max_chunks)

    def readable(self, length: int, tokens: int) -> int:
        """Bound how many characters of a text are read for this many tokens."""
        return min(length, round(tokens / MIN_DENSITY))

    def estimate(self, call: AskedCall, lengths: Sequence[int], depth: DepthConfig) -> RankerWork:
        """Estimate the positions and chunks of documents of these lengths (in characters) on the device.

        With adaptive depth they are the most that its budget allows; only the first round must be done.
        """
        if not lengths:
            return RankerWork(self.key, 0, 0)
        must_share = 1.0
        most_tokens = self.tokens_read(call.max_chunks, depth)
        # First with the token density of recent texts, then with the lowest density.
        estimated, chunks = self._positions(call, lengths, most_tokens, self.density.per_character)
        least, _ = self._positions(call, lengths, most_tokens, MIN_DENSITY)
        if depth.is_adaptive:
            longest = self.reader.longest_input
            if call.instruction:
                longest = self.reader.max_input_tokens
            budget: float = self.spec.depth_plan.most_chunks(len(lengths)) * longest
            if depth.chunks is not None:
                budget = depth.chunks * len(lengths) * longest
            elif depth.tokens is not None:
                budget = depth.tokens
            elif depth.milliseconds is not None:
                budget = depth.milliseconds / 1000 * self.tokens_per_s()
            # One chunk of each document is read in any case.
            budget = max(budget, len(lengths) * longest)
            estimated, least = min(estimated, budget), min(least, budget)
            chunks = min(chunks, budget / longest)
            if depth.chunks is None and depth.tokens is None:  # other budgets have one round
                first = len(lengths) * self.spec.depth_plan.rounds[0].chunks * longest
                must_share = min(1.0, first / max(1.0, estimated))
        return RankerWork(self.key, round(estimated), round(chunks), round(least), must_share)

    def _positions(
        self, call: AskedCall, lengths: Sequence[int], max_tokens: int, per_character: float
    ) -> tuple[float, float]:
        """Compute the number of positions and chunks for a given number of tokens per character."""
        window, stride = self.spec.chunking.window, self.spec.chunking.stride
        framing = 2.0
        if not self.is_dual:
            framing = self.reader.framing_tokens + len(call.instruction) * per_character
            framing += min(len(call.query) * per_character, self.spec.max_query_tokens)
        repeated = max(1.0, window / stride)
        total_positions = total_chunks = 0.0
        for length in lengths:
            tokens = min(length * per_character, max_tokens)
            chunks = 1.0 if tokens <= window else 1 + (tokens - window) / stride
            if call.max_chunks is not None:
                chunks = min(chunks, call.max_chunks)
            read = min(tokens * repeated if chunks > 1 else tokens, chunks * window)
            total_positions += read + chunks * framing + 1
            total_chunks += chunks
        return total_positions, total_chunks


@dataclass(frozen=True, slots=True)
class LoadedEnsemble:
    """Several rankers that act as one; the score is their mean.

    The most trusted member stands first: its chunks show which passage decided.
    """

    name: str
    members: tuple[LoadedRanker, ...]

    @property
    def version(self) -> str:
        """A hash of the members' versions."""
        return ensemble_version(member.version for member in self.members)

    @property
    def evidence(self) -> EvidenceKind:
        """The meaning of the chunk scores: that of the first member."""
        return self.members[0].evidence

    @property
    def document_calibration(self) -> Calibration:
        """The calibration of the mean score: the mean of the members' calibrations."""
        each = [member.document_calibration for member in self.members]
        return Calibration(fmean(one.scale for one in each), fmean(one.offset for one in each))

    @property
    def chunk_calibration(self) -> Calibration:
        """The calibration of the chunk scores: that of the first member."""
        return self.members[0].chunk_calibration


Scorer = LoadedRanker | LoadedEnsemble
