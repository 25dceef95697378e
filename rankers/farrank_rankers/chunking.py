"""Which tokens of a document each chunk holds."""

from dataclasses import dataclass
from typing import get_args

from farrank_rankers.errors import SpecError
from farrank_rankers.family import ChunkingKind
from farrank_rankers.limits import check_count


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a document's tokens are split; every field but `kind` counts document tokens.

    first: one chunk, the first `window` tokens. disjoint: greedy, every chunk but the last is full. sliding:
    chunk i starts at token i·stride. `stride` equals `window` unless the window slides.
    Raises: SpecError naming field, value and limit.
    """

    kind: ChunkingKind
    window: int
    stride: int
    max_document_tokens: int

    def __post_init__(self) -> None:
        """Refuse what would lose tokens or never end."""
        kinds = get_args(ChunkingKind)
        if self.kind not in kinds:
            raise SpecError(f"chunking.kind is {self.kind!r}; it must be one of {', '.join(kinds)}")
        for name in ("window", "stride", "max_document_tokens"):
            check_count(f"chunking.{name}", getattr(self, name), at_least=1)
        if self.stride > self.window:
            raise SpecError(
                f"chunking.stride is {self.stride}; it must be at most the window of {self.window}, "
                "or tokens would go unread"
            )
        if self.kind != "sliding" and self.stride != self.window:
            raise SpecError(
                f"chunking.stride is {self.stride}; it must equal the window of {self.window} "
                "unless chunking.kind is 'sliding'"
            )


def chunk_bounds(chunking: Chunking, tokens: int, max_chunks: int | None = None) -> list[tuple[int, int]]:
    """Give each chunk's first token and the one after its last, for a document of `tokens` tokens.

    There are ⌈max(0, tokens − window) / stride⌉ + 1 chunks (one of kind first), at most `max_chunks`; an
    empty document has one empty chunk. `max_document_tokens` was applied when the text was read.
    Raises: ValueError if max_chunks is less than 1.
    """
    starts = range(0, chunk_count(chunking, tokens, max_chunks) * chunking.stride, chunking.stride)
    return [(start, min(start + chunking.window, tokens)) for start in starts]


def chunk_count(chunking: Chunking, tokens: int, max_chunks: int | None = None) -> int:
    """Count the chunks of a document of `tokens` tokens.

    Raises: ValueError if max_chunks is less than 1.
    """
    limit = chunk_limit(chunking, max_chunks)
    needed = -(-max(0, tokens - chunking.window) // chunking.stride) + 1
    return needed if limit is None else min(needed, limit)


def readable_tokens(chunking: Chunking, max_chunks: int | None = None) -> int:
    """Count the document tokens that can reach a chunk at all: the rest of a text need not be kept.

    Raises: ValueError if max_chunks is less than 1.
    """
    count = chunk_limit(chunking, max_chunks)
    if count is None:
        return chunking.max_document_tokens
    return min(chunking.max_document_tokens, (count - 1) * chunking.stride + chunking.window)


def chunk_limit(chunking: Chunking, max_chunks: int | None) -> int | None:
    """Join the caller's limit with the kind's own: None is no limit.

    Raises: ValueError if max_chunks is less than 1.
    """
    if max_chunks is not None and max_chunks < 1:
        raise ValueError(f"max_chunks is {max_chunks}; it must be at least 1")
    return 1 if chunking.kind == "first" else max_chunks
