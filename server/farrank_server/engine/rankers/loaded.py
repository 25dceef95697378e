"""One loaded ranker with all that its requests pass through."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from farrank_rankers.aggregate import EvidenceKind
from farrank_rankers.exports.manifest import Parity
from farrank_rankers.reader import Reader
from farrank_rankers.spec import RankerSpec
from farrank_runtimes.runtime import Runtime
from farrank_server.batching.batcher import Batcher
from farrank_server.engine.admission.estimates import Speed, TokenDensity
from farrank_server.engine.call import ActiveCall, Part, PendingDocument
from farrank_server.engine.rankers.document_cache import DocumentCache

# A document that needs no more encoding, and the job it belongs to.
Ready = tuple[ActiveCall, PendingDocument]


@dataclass(slots=True, eq=False)
class LoadedRanker:
    """A ranker's stages.

    `ready` holds documents that need no more encoding; guarded, like the batcher, by the worker's lock.
    `load` makes a fresh runtime after the device was lost. `runtime_reason` says why this runtime; `parity`
    how close an export comes to its ranker.
    """

    name: str
    version: str
    spec: RankerSpec
    reader: Reader
    evidence: EvidenceKind
    runtime: Runtime
    load: Callable[[], Runtime]
    batcher: Batcher[Part]
    speed: Speed
    cache: DocumentCache | None
    runtime_reason: str = ""
    parity: Parity | None = None
    density: TokenDensity = field(default_factory=TokenDensity)
    ready: deque[Ready] = field(default_factory=deque)

    @property
    def is_dual(self) -> bool:
        """Whether query and chunks are encoded apart."""
        return self.spec.plan == "dual"

    @property
    def cache_name(self) -> str:
        """What encodings depend on beside the text: precisions of the same weights differ, too."""
        capabilities = self.runtime.capabilities()
        return f"{self.version}/{capabilities.runtime}/{capabilities.precision}"

    def has_work(self) -> bool:
        """Whether the worker has anything to do here."""
        return bool(self.ready) or len(self.batcher) > 0

    def estimate_tokens(self, query: str, characters: int, max_chunks: int | None) -> int:
        """Guess the positions that a document of so many characters will take on the device."""
        chunking = self.spec.chunking
        tokens = min(self.density.estimate(characters), chunking.max_document_tokens)
        chunks = 1 + max(0.0, tokens - chunking.window) / chunking.stride
        if max_chunks is not None:
            chunks = min(chunks, max_chunks)
        overlap = max(1.0, chunking.window / chunking.stride) if chunks > 1 else 1.0
        query_tokens = min(self.density.estimate(len(query)), self.spec.max_query_tokens)
        beside = 2 if self.is_dual else 3 + query_tokens
        return round(min(tokens * overlap, chunks * chunking.window) + chunks * beside) + 1
