"""Splitting of documents into chunks, and its defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farrank_rankers.errors import SpecError
from farrank_rankers.family import ChunkingKind, ReadAs, check_count
from farrank_rankers.json_values import read_value
from farrank_rankers.tokens import IntArray


@dataclass(frozen=True, slots=True)
class Chunking:
    """The splitting of a document's tokens; every field but `kind` counts document tokens.

    first: one chunk, the first `window` tokens. disjoint: greedy, every chunk but the last is full. sliding:
    chunk i starts at token i·stride. `stride` equals `window` unless the window slides.
    Raises: SpecError naming field, value and limit.
    """

    kind: ChunkingKind
    window: int
    stride: int
    max_document_tokens: int

    def __post_init__(self) -> None:
        """Refuse values that would lose tokens or never end."""
        read_value(ChunkingKind, self.kind, "chunking.kind", SpecError)
        for name in ("window", "stride", "max_document_tokens"):
            at_most = WHOLE_DOCUMENT if name == "max_document_tokens" else None
            check_count(f"chunking.{name}", getattr(self, name), at_least=1, at_most=at_most)
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


def chunk_bounds(chunking: Chunking, tokens: int, max_chunks: int | None = None) -> IntArray:
    """Give each chunk's first token and the one after its last, for a document of `tokens` tokens, (C, 2).

    There are ⌈max(0, tokens − window) / stride⌉ + 1 chunks (one of kind first), at most `max_chunks`; an
    empty document has one empty chunk. `max_document_tokens` was applied when the text was read.
    Raises: ValueError if max_chunks is less than 1.
    """
    starts = np.arange(chunk_count(chunking, tokens, max_chunks), dtype=np.int32) * chunking.stride
    return np.stack((starts, np.minimum(starts + chunking.window, tokens)), axis=1, dtype=np.int32)


def chunk_count(chunking: Chunking, tokens: int, max_chunks: int | None = None) -> int:
    """Count the chunks of a document of `tokens` tokens.

    Raises: ValueError if max_chunks is less than 1.
    """
    limit = chunk_limit(chunking, max_chunks)
    needed = -(-max(0, tokens - chunking.window) // chunking.stride) + 1
    return needed if limit is None else min(needed, limit)


def readable_tokens(chunking: Chunking, max_chunks: int | None = None) -> int:
    """Count the document tokens that can be in a chunk; the rest of a text need not be kept.

    Raises: ValueError if max_chunks is less than 1.
    """
    count = chunk_limit(chunking, max_chunks)
    if count is None:
        return chunking.max_document_tokens
    return min(chunking.max_document_tokens, (count - 1) * chunking.stride + chunking.window)


def chunk_limit(chunking: Chunking, max_chunks: int | None) -> int | None:
    """Combine the caller's limit with the kind's own; None means no limit.

    Raises: ValueError if max_chunks is less than 1.
    """
    if max_chunks is not None and max_chunks < 1:
        raise ValueError(f"max_chunks is {max_chunks}; it must be at least 1")
    return 1 if chunking.kind == "first" else max_chunks


# The `max_document_tokens` of a ranker without a limit: more tokens than a document of 16 MiB has, which is
# the largest that a server accepts by default.
WHOLE_DOCUMENT = 2**24

# The papers' limit: three chunks of 512 - 32 - 3 tokens a document.
PAPERS_DOCUMENT_TOKENS = 1431

# The windows of 150 tokens, 100 apart, are those of FlexNeuART (Dai & Callan have 150 words, 75 apart).
# Sentence encoders were trained on at most about 256 tokens.
_USUAL: Mapping[ReadAs, Chunking] = {
    "pair": Chunking("sliding", window=150, stride=100, max_document_tokens=WHOLE_DOCUMENT),
    "dual": Chunking("sliding", window=200, stride=150, max_document_tokens=WHOLE_DOCUMENT),
    "prompt": Chunking("sliding", window=512, stride=384, max_document_tokens=WHOLE_DOCUMENT),
}
_WHOLE_WINDOW: Mapping[ReadAs, int] = {"pair": 477, "dual": 200, "prompt": 512}
# The only window of a ranker that reads documents at once, if the backbone does not bound it.
LONGEST_WINDOW = 4096

# The papers' pairs have 32 query tokens.
MAX_QUERY_TOKENS: Mapping[ReadAs, int] = {"pair": 32, "dual": 128, "prompt": 512}


def whole_query_tokens(positions: int | None, room: int | None) -> int:
    """Give the query tokens of a published cross-encoder: up to an eighth of its positions, 32 to 512.

    Its published code reads queries whole. `room` is left besides a given window; None means no limit.
    """
    fewest = MAX_QUERY_TOKENS["pair"]
    most = 512 if positions is None else min(512, max(fewest, positions // 8))
    return most if room is None else min(most, max(fewest, room))


def default_chunking(
    read_as: ReadAs, kind: ChunkingKind, room: int | None, *, whole: bool = False
) -> Chunking:
    """Choose windows of at most `room` tokens, which the backbone has left besides query and special tokens.

    With `whole`, the window is as long as the room. A backbone without room gets windows of one token; its
    reader then refuses them, with the calculation in the message.
    """
    usual = _USUAL[read_as]
    if kind != "sliding":
        window = _WHOLE_WINDOW[read_as]
        usual = Chunking(kind, window, window, usual.max_document_tokens)
    if whole:
        return adjusted(usual, window=LONGEST_WINDOW if room is None else max(1, room))
    return usual if room is None or room >= usual.window else adjusted(usual, window=max(1, room))


def adjusted(
    chunking: Chunking,
    *,
    window: int | None = None,
    stride: int | None = None,
    max_document_tokens: int | None = None,
) -> Chunking:
    """Change some numbers; the stride, if not given, follows the window, in proportion if the window slides.

    Raises: SpecError naming field, value and limit.
    """
    if stride is None and window is not None:
        stride = window if chunking.kind != "sliding" else max(1, window * chunking.stride // chunking.window)
    changes: dict[str, Any] = {"window": window, "stride": stride, "max_document_tokens": max_document_tokens}
    return replace(chunking, **{name: value for name, value in changes.items() if value is not None})
