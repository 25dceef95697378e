"""Rows of features can be separated and joined again without losing a value."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farrank_rankers.features import Features, Windows, batched, stacked
from farrank_rankers.tokens import Role

LENGTHS = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4)


def tokens(length: int, width: int = 3) -> Features:
    roles = torch.full((length,), Role.DOCUMENT)
    roles[0] = Role.SPECIAL
    return Features(torch.randn(length, width), roles)


@given(lengths=LENGTHS)
def test_token_vectors_keep_their_places(lengths: list[list[int]]) -> None:
    documents = [[tokens(length) for length in chunks] for chunks in lengths]
    features, mask = batched([stacked(chunks) for chunks in documents])
    assert features.roles is not None
    assert mask.sum(dim=1).tolist() == [len(chunks) for chunks in documents]
    for row, chunks in enumerate(documents):
        for column, chunk in enumerate(chunks):
            assert chunk.roles is not None
            length = len(chunk.roles)
            assert torch.equal(features.vectors[row, column, :length], chunk.vectors)
            assert torch.equal(features.roles[row, column, :length], chunk.roles)
            assert not features.roles[row, column, length:].any()
    assert not features.roles[~mask].any()


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_rows_leave_out_the_padding_at_the_end(lengths: list[int]) -> None:
    chunks = [tokens(length) for length in lengths]
    for chunk, row in zip(chunks, stacked(chunks).rows(), strict=True):
        assert torch.equal(row.vectors, chunk.vectors)
        assert row.roles is not None
        assert chunk.roles is not None
        assert torch.equal(row.roles, chunk.roles)


def test_padding_inside_an_input_stays() -> None:
    roles = torch.tensor([[Role.SPECIAL, Role.QUERY, Role.PADDING, Role.SPECIAL, Role.PADDING]])
    (row,) = Features(torch.randn(1, 5, 2), roles).rows()
    assert row.roles is not None
    assert row.roles.tolist() == [Role.SPECIAL, Role.QUERY, Role.PADDING, Role.SPECIAL]


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_whole_vectors_keep_their_places(counts: list[int]) -> None:
    documents = [torch.randn(count, 3) for count in counts]
    features, mask = batched([stacked(Features(document).rows()) for document in documents])
    assert features.roles is None
    for row, document in enumerate(documents):
        assert torch.equal(features.vectors[row, : len(document)], document)
        assert mask[row].tolist() == [column < len(document) for column in range(max(counts))]


def test_bytes_count_both_tensors() -> None:
    assert tokens(4, width=3).nbytes == 4 * 3 * 4 + 4 * 8
    assert Features(torch.zeros(2, 5)).nbytes == 40


def test_tokens_and_whole_vectors_do_not_mix() -> None:
    with pytest.raises(ValueError, match="features have no roles"):
        stacked([tokens(2), Features(torch.zeros(3))])


def test_the_first_chunks_of_padded_and_of_joined_windows() -> None:
    padded = Features(torch.arange(24.0).view(3, 4, 2), torch.ones(3, 4, dtype=torch.int64))
    assert padded.chunks == 3
    some = padded.first(2)
    assert (some.chunks, some.vectors.tolist()) == (2, padded.vectors[:2].tolist())
    assert some.token_roles.shape == (2, 4)
    joined = Features(torch.arange(14.0).view(7, 2), windows=Windows(np.array([2, 2, 7]), "codec"))
    assert joined.chunks == 3
    some = joined.first(2)
    assert some.windows is not None
    assert (some.chunks, some.windows.ends.tolist(), some.windows.codec) == (2, [2, 2], "codec")
    assert some.vectors.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert joined.to("cpu").windows is joined.windows
    assert joined.nbytes == 7 * 2 * 4 + 3 * 8
