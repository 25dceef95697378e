"""A loaded ranker with all that its calls need, and several that answer as one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from farrank_rankers.calibration import Calibration
from farrank_rankers.ensemble import ensemble_version
from farrank_rankers.exports.manifest import Parity
from farrank_rankers.family import EvidenceKind
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Capabilities, Runtime
from farrank_server.batching.batcher import BatchPolicy
from farrank_server.engine.admission.estimates import Speeds, TokenDensity
from farrank_server.engine.admission.reservations import Work
from farrank_server.engine.rankers.document_cache import DocumentCache

# Fewer tokens per character than texts have: prose has two to three times as many.
LEAST_DENSITY = 0.1


@dataclass(slots=True, eq=False)
class LoadedRanker:
    """A ranker, what runs it, and what is known of its speed.

    `encodings_version` is the same for rankers that differ in the limit on a document's tokens alone.
    `runtime` belongs to the device's thread and is absent while the device is brought back; `capabilities`
    are its own, for everybody else. `load` makes a fresh one and took `load_s` at the start. `probe` is an
    input that is known to be good. `runtime_reason` says why this runtime; `parity` how close an export comes
    to its ranker.
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
    load_s: float
    policy: BatchPolicy
    speeds: Speeds
    cache: DocumentCache | None
    probe: EncoderInput
    runtime_reason: str = ""
    parity: Parity | None = None
    density: TokenDensity = field(default_factory=TokenDensity)

    def release(self) -> None:
        """Let go of the runtime: before another is loaded, or the device would have to hold both."""
        if hasattr(self, "runtime"):
            self.runtime.close()
            del self.runtime

    def reload(self) -> None:
        """Load a fresh runtime and warm it up."""
        self.runtime = self.load()
        self.capabilities = self.runtime.capabilities()

    def tokens_per_s(self) -> float:
        """The measured speed of its encoder."""
        return self.speeds.encoding.per_s

    @property
    def members(self) -> "tuple[LoadedRanker]":
        """The rankers whose scores it gives: itself."""
        return (self,)

    @property
    def is_dual(self) -> bool:
        """Whether query and chunks are encoded apart."""
        return self.spec.plan == "dual"

    @property
    def cache_name(self) -> str:
        """What encodings depend on beside the text: precisions of the same weights differ, too."""
        return f"{self.version}/{self.capabilities.runtime}/{self.capabilities.precision}"

    @property
    def document_calibration(self) -> Calibration:
        """How a document's raw score becomes one between 0 and 1."""
        return self.spec.document_calibration

    @property
    def chunk_calibration(self) -> Calibration:
        """How a chunk's own score becomes one between 0 and 1."""
        return self.spec.chunk_calibration

    def readable(self, length: int, count_tokens: bool) -> int:
        """Bound the characters that are read of a text: up to the ranker's limit, or to its end to count."""
        if count_tokens:
            return length
        return min(length, round(self.spec.chunking.max_document_tokens / LEAST_DENSITY))

    def estimate(self, query: str, lengths: Sequence[int], max_chunks: int | None) -> Work:
        """Guess what positions documents of so many characters will take on the device, and their chunks."""
        if not lengths:
            return Work(self.name, 0, 0)
        # As dense as texts were lately, and the least.
        estimated, chunks = self._positions(query, lengths, max_chunks, self.density.per_character)
        least, _ = self._positions(query, lengths, max_chunks, LEAST_DENSITY)
        return Work(self.name, round(estimated), round(chunks), round(least))

    def _positions(
        self, query: str, lengths: Sequence[int], max_chunks: int | None, per_character: float
    ) -> tuple[float, float]:
        """Say how many positions and chunks it will be, if every character has so many tokens."""
        chunking = self.spec.chunking
        window, stride, most = chunking.window, chunking.stride, chunking.max_document_tokens
        beside = 2 if self.is_dual else 3 + min(len(query) * per_character, self.spec.max_query_tokens)
        repeated = max(1.0, window / stride)
        total_positions = total_chunks = 0.0
        for length in lengths:
            tokens = min(length * per_character, most)
            chunks = 1.0 if tokens <= window else 1 + (tokens - window) / stride
            if max_chunks is not None:
                chunks = min(chunks, max_chunks)
            read = min(tokens * repeated if chunks > 1 else tokens, chunks * window)
            total_positions += read + chunks * beside + 1
            total_chunks += chunks
        return total_positions, total_chunks


@dataclass(frozen=True, slots=True)
class LoadedEnsemble:
    """Rankers that answer as one, by their mean score.

    The most trusted member stands first: its chunks say which passage decided.
    """

    name: str
    members: tuple[LoadedRanker, ...]

    @property
    def version(self) -> str:
        """Hash of the members' versions."""
        return ensemble_version(member.version for member in self.members)

    @property
    def evidence(self) -> EvidenceKind:
        """What the chunk scores mean: the first member's."""
        return self.members[0].evidence

    @property
    def document_calibration(self) -> Calibration:
        """That of the mean score: the mean of the members'."""
        each = [member.document_calibration for member in self.members]
        return Calibration(fmean(one.scale for one in each), fmean(one.offset for one in each))

    @property
    def chunk_calibration(self) -> Calibration:
        """That of the chunk scores: the first member's."""
        return self.members[0].chunk_calibration


Scorer = LoadedRanker | LoadedEnsemble
