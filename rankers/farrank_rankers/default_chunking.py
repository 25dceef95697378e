"""How documents are split when nobody says otherwise."""

from collections.abc import Mapping

from farrank_rankers.chunking import Chunking
from farrank_rankers.family import ChunkingKind, Plan

# The paper's limits: three chunks of 512 - 32 - 3 tokens a document, or Dai & Callan's windows over the same.
_PAIR: Mapping[ChunkingKind, Chunking] = {
    "first": Chunking("first", window=477, stride=477, max_document_tokens=1431),
    "disjoint": Chunking("disjoint", window=477, stride=477, max_document_tokens=1431),
    "sliding": Chunking("sliding", window=150, stride=100, max_document_tokens=1431),
}

# Sentence encoders were trained on some 256 tokens at most, and their documents may be longer: chunks do not
# depend on the query, so that their vectors can be kept.
_DUAL: Mapping[ChunkingKind, Chunking] = {
    "first": Chunking("first", window=200, stride=200, max_document_tokens=4096),
    "disjoint": Chunking("disjoint", window=200, stride=200, max_document_tokens=4096),
    "sliding": Chunking("sliding", window=200, stride=150, max_document_tokens=4096),
}

MAX_QUERY_TOKENS: Mapping[Plan, int] = {"pair": 32, "dual": 128}


def default_chunking(plan: Plan, kind: ChunkingKind, room: int | None, *, whole: bool = False) -> Chunking:
    """Choose windows of at most `room` tokens, what the backbone has left beside query and special tokens.

    With `whole`, a window would hold all tokens that are kept of a document. A backbone without room gets
    windows of one token, which its reader will refuse with the whole sum.
    """
    usual = (_PAIR if plan == "pair" else _DUAL)[kind]
    if whole:
        usual = adjusted(usual, window=usual.max_document_tokens)
    return usual if room is None or room >= usual.window else adjusted(usual, window=max(1, room))


def adjusted(
    chunking: Chunking,
    *,
    window: int | None = None,
    stride: int | None = None,
    max_document_tokens: int | None = None,
) -> Chunking:
    """Change some numbers; a stride not given follows the window, in proportion if the window slides.

    Raises: SpecError naming field, value and limit.
    """
    if stride is None and window is not None:
        stride = window if chunking.kind != "sliding" else max(1, window * chunking.stride // chunking.window)
    elif stride is None:
        stride = chunking.stride
    return Chunking(
        chunking.kind,
        window=chunking.window if window is None else window,
        stride=stride,
        max_document_tokens=chunking.max_document_tokens
        if max_document_tokens is None
        else max_document_tokens,
    )
