import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.chunking import (
    WHOLE_DOCUMENT,
    Chunking,
    adjusted,
    chunk_bounds,
    chunk_count,
    default_chunking,
    readable_tokens,
)
from farrank_rankers.errors import SpecError
from farrank_rankers.family import ChunkingKind

SIZES = (0, 1, 476, 477, 478, 954, 1431, 5000)


@st.composite
def chunkings(draw: st.DrawFn) -> Chunking:
    window = draw(st.integers(1, 60))
    kinds: list[ChunkingKind] = ["first", "disjoint", "sliding"]
    kind = draw(st.sampled_from(kinds))
    stride = draw(st.integers(1, window)) if kind == "sliding" else window
    return Chunking(kind, window, stride, draw(st.integers(1, 400)))


@given(chunkings(), st.integers(0, 400), st.none() | st.integers(1, 20))
def test_chunks_cover_the_document_in_strides(
    chunking: Chunking, tokens: int, max_chunks: int | None
) -> None:
    bounds = chunk_bounds(chunking, tokens, max_chunks).tolist()
    assert len(bounds) == chunk_count(chunking, tokens, max_chunks)
    full = max(0, math.ceil(max(0, tokens - chunking.window) / chunking.stride)) + 1
    limit = 1 if chunking.kind == "first" else max_chunks
    assert len(bounds) == (full if limit is None else min(full, limit))
    for index, (first, end) in enumerate(bounds):
        assert first == index * chunking.stride
        assert end == min(first + chunking.window, tokens)
        assert end > first or tokens == 0
    covered = {token for first, end in bounds for token in range(first, end)}
    assert covered == set(range(bounds[-1][1]))
    if len(bounds) == full and chunking.kind != "first":
        assert bounds[-1][1] == tokens


@given(chunkings(), st.integers(1, 400), st.none() | st.integers(1, 20))
def test_tokens_that_reach_no_chunk_are_not_read(
    chunking: Chunking, tokens: int, max_chunks: int | None
) -> None:
    whole = min(tokens, chunking.max_document_tokens)
    cut = min(tokens, readable_tokens(chunking, max_chunks))
    bounds = chunk_bounds(chunking, cut, max_chunks).tolist()
    assert bounds == chunk_bounds(chunking, whole, max_chunks).tolist()
    assert bounds[-1][1] == cut


@pytest.mark.parametrize(
    ("tokens", "disjoint", "sliding"),
    list(zip(SIZES, (1, 1, 1, 1, 2, 2, 3, 11), (1, 1, 5, 5, 5, 10, 14, 50), strict=True)),
)
def test_the_papers_windows(tokens: int, disjoint: int, sliding: int) -> None:
    assert len(chunk_bounds(Chunking("disjoint", 477, 477, 9999), tokens)) == disjoint
    assert len(chunk_bounds(Chunking("sliding", 150, 100, 9999), tokens)) == sliding
    assert chunk_bounds(Chunking("first", 477, 477, 9999), tokens).tolist() == [[0, min(477, tokens)]]


@pytest.mark.parametrize(
    ("kind", "window", "stride", "limit", "message"),
    [
        ("random", 5, 5, 5, "chunking.kind is 'random'; it must be one of first, disjoint, sliding"),
        ("sliding", 0, 1, 5, "chunking.window is 0; it must be at least 1"),
        ("sliding", 5, 0, 5, "chunking.stride is 0; it must be at least 1"),
        ("sliding", 5, 6, 5, "chunking.stride is 6; it must be at most the window of 5"),
        ("disjoint", 5, 4, 5, "chunking.stride is 4; it must equal the window of 5"),
        ("first", 5, 5, -1, "chunking.max_document_tokens is -1; it must be at least 1"),
        ("first", 5.0, 5, 5, "chunking.window is 5.0; it must be a whole number"),
        ("first", True, 5, 5, "chunking.window is True; it must be a whole number"),
    ],
)
def test_a_bad_field_is_named(kind: str, window: int, stride: int, limit: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Chunking(kind, window, stride, limit)  # type: ignore[arg-type]


def test_at_least_one_chunk_must_be_allowed() -> None:
    with pytest.raises(ValueError, match="max_chunks is 0; it must be at least 1"):
        chunk_bounds(Chunking("first", 5, 5, 5), 5, 0)


def test_a_stride_follows_its_window() -> None:
    sliding = Chunking("sliding", 150, 100, 1431)
    assert adjusted(sliding, window=75) == Chunking("sliding", 75, 50, 1431)
    assert adjusted(sliding, window=1).stride == 1
    assert adjusted(sliding, stride=30) == Chunking("sliding", 150, 30, 1431)
    assert adjusted(sliding, max_document_tokens=9) == Chunking("sliding", 150, 100, 9)
    assert adjusted(Chunking("disjoint", 9, 9, 90), window=7) == Chunking("disjoint", 7, 7, 90)


def test_defaults_shrink_with_the_backbone() -> None:
    assert default_chunking("pair", "disjoint", 477) == Chunking("disjoint", 477, 477, WHOLE_DOCUMENT)
    assert default_chunking("pair", "first", 93) == Chunking("first", 93, 93, WHOLE_DOCUMENT)
    assert default_chunking("pair", "sliding", 93) == Chunking("sliding", 93, 62, WHOLE_DOCUMENT)
    assert default_chunking("dual", "sliding", None) == Chunking("sliding", 200, 150, WHOLE_DOCUMENT)
