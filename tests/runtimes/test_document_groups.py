"""Documents in groups: each within its limit, scored as if alone, and halved when memory runs out."""

import weakref
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from farrank_rankers.features import Features
from farrank_rankers.tokens import Role
from farrank_runtimes.document_groups import GroupLimit, gathered, groups, kept, score_in_groups
from farrank_runtimes.runtime import DeviceLost, DocumentScores, OutOfMemory

CPU = torch.device("cpu")
MIB = 2**20


def document(chunks: int, tokens: int | None, width: int, value: float = 0.0) -> Features:
    """Make features that take no memory, whatever their shape."""
    leading = (chunks,) if tokens is None else (chunks, tokens)
    roles = None if tokens is None else torch.full((1, 1), Role.DOCUMENT).expand(leading)
    return Features(torch.full([1] * (len(leading) + 1), value).expand(*leading, width), roles)


def query(tokens: int, width: int) -> Features:
    return Features(torch.zeros(1, 1).expand(tokens, width), torch.full((tokens,), Role.QUERY))


@pytest.mark.parametrize(
    ("chunks", "tokens", "asked", "width", "together"),
    [
        pytest.param(1, None, 0, 8, 8192 // 2, id="one chunk each"),
        pytest.param(9, None, 0, 8, 8192 // 90, id="chunks that evidence leaves out"),
        pytest.param(4, 64, 0, 8, 8192 // 256, id="tokens"),
        pytest.param(4, 48, 16, 8, 8192 // 256, id="tokens beside a query's"),
        pytest.param(2, 32, 0, 2**15, 64 // 8, id="wide tokens"),
        pytest.param(4, 8192, 0, 8, 1, id="a document beyond the bound is alone"),
        pytest.param(2, 64, 0, 2**19, 1, id="bytes beyond the bound, too"),
    ],
)
@pytest.mark.parametrize("more", [0, 1])
def test_groups_are_as_large_as_their_limit_allows(
    chunks: int, tokens: int | None, asked: int, width: int, together: int, more: int
) -> None:
    documents = [document(chunks, tokens, width)] * (2 * together + more)
    queries = [query(asked, width)] * len(documents) if asked else None
    found = list(groups(documents, queries, GroupLimit(feature_bytes=64 * MIB, positions=8192)))
    assert [len(documents[group]) for group in found] == [together] * 2 + [1] * more


def test_without_a_limit_of_positions_bytes_alone_count() -> None:
    found = list(groups([document(40, None, 8)] * 3000, None, GroupLimit(feature_bytes=64 * MIB)))
    assert found == [slice(0, 3000)]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(1, 40_000),
    st.integers(1, 600),
)
def test_every_group_fits_and_no_document_is_lost(
    shapes: list[tuple[int, int]], feature_bytes: int, positions: int
) -> None:
    documents = [document(chunks, tokens, 8) for chunks, tokens in shapes]
    found = list(groups(documents, None, GroupLimit(feature_bytes, positions)))
    assert found[0].start == 0
    assert found[-1].stop == len(documents)
    assert all(one.stop == following.start for one, following in pairwise(found))
    for group in found:
        count, chunks, tokens = (
            group.stop - group.start,
            max(each[0] for each in shapes[group]),
            max(each[1] for each in shapes[group]),
        )
        within = count * chunks * tokens * 8 * 4 <= feature_bytes
        assert count == 1 or (within and count * chunks * max(1 + chunks, tokens) <= positions)


class FirstValue:
    """Scores a document and each chunk with the document's first value. Fails on more than `room`."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.seen: list[int] = []
        self.held: list[weakref.ref[Tensor]] = []

    def __call__(
        self, features: Features, chunk_mask: Tensor, query: Features | None
    ) -> tuple[list[float], list[list[float]]]:
        assert not any(each() is not None for each in self.held)
        self.held.append(weakref.ref(features.vectors))
        if len(chunk_mask) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.seen.append(len(chunk_mask))
        scores = features.vectors[:, 0, 0]
        if query is not None:
            scores = scores + query.vectors[:, 0]
        return scores.tolist(), scores[:, None].where(chunk_mask, -torch.inf).tolist()


def scored(
    aggregate: FirstValue, documents: Sequence[Features], queries: Sequence[Features] | None = None
) -> DocumentScores:
    return score_in_groups(aggregate, documents, queries, device=CPU, limit=GroupLimit(4 * 8 * 4 * 10))


def test_documents_in_several_groups_keep_their_order_and_have_evidence_of_their_own_chunks() -> None:
    documents = [document(1 + number % 4, None, 8, float(number)) for number in range(35)]
    queries = [Features(torch.full((8,), 100.0 * number)) for number in range(35)]
    aggregate = FirstValue()
    found = scored(aggregate, documents, queries)
    assert aggregate.seen == [10, 10, 10, 5]
    assert found.scores == [101.0 * number for number in range(35)]
    assert found.chunk_scores == [[101.0 * number] * (1 + number % 4) for number in range(35)]
    assert found.halved_groups == 0


def test_a_group_that_runs_out_of_memory_is_halved_until_it_fits_and_lets_go_of_its_memory_before() -> None:
    documents = [document(4, None, 8, float(number)) for number in range(20)]
    aggregate = FirstValue(room=3)
    found = scored(aggregate, documents)
    assert aggregate.seen == [2, 3, 2, 3] * 2
    assert found.scores == [float(number) for number in range(20)]
    assert found.halved_groups == 2 * 3


def test_a_document_that_does_not_fit_alone_is_reported() -> None:
    with pytest.raises(OutOfMemory):
        scored(FirstValue(room=0), [document(2, None, 8)] * 5)


def test_a_lost_device_is_reported_at_once() -> None:
    attempts = []

    def lost(*given: object) -> tuple[list[float], list[list[float]]]:
        attempts.append(given)
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(DeviceLost):
        score_in_groups(lost, [document(2, None, 8)] * 5, None, device=CPU, limit=GroupLimit(MIB))
    assert len(attempts) == 1


def test_no_document_is_no_group() -> None:
    found = scored(FirstValue(), [])
    assert (found.scores, found.chunk_scores) == ([], [])


def test_chunks_are_gathered_and_those_of_tokens_padded() -> None:
    assert gathered([Features(torch.ones(3)), Features(torch.zeros(3))]).vectors.tolist() == [
        [1] * 3,
        [0] * 3,
    ]
    rows = [Features(torch.ones(n, 2), torch.full((n,), Role.DOCUMENT)) for n in (1, 3)]
    found = gathered(rows)
    assert found.vectors.shape == (2, 3, 2)
    assert found.roles is not None
    assert found.roles[0].tolist() == [Role.DOCUMENT, Role.PADDING, Role.PADDING]


def test_chunks_that_do_not_fit_are_reported_as_a_failure_of_the_device() -> None:
    huge = torch.empty(1).expand(2**45)
    with pytest.raises(OutOfMemory):
        gathered([Features(huge)] * 2)


def test_stored_features_do_not_hold_their_batch() -> None:
    batch = Features(torch.arange(12.0).reshape(6, 2), torch.full((6,), Role.DOCUMENT))
    row = Features(batch.vectors[2:4], batch.roles[2:4] if batch.roles is not None else None)
    for on_host in (False, True):
        copy = kept(row, on_host=on_host)
        assert torch.equal(copy.vectors, row.vectors)
        assert copy.roles is not None
        assert copy.roles.tolist() == [Role.DOCUMENT] * 2
        assert copy.vectors.untyped_storage().nbytes() == copy.vectors.nbytes


def test_where_the_device_has_no_room_features_are_kept_in_host_memory() -> None:
    class Full(torch.Tensor):
        """A device that has no room for a copy."""

        def clone(self, *given: object, **named: object) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

        def to(self, device: object) -> torch.Tensor:  # type: ignore[override]
            return torch.Tensor(self.tolist())

    row = Features(torch.ones(4, 3).as_subclass(Full)[1])
    found = kept(row, on_host=False)
    assert type(found.vectors) is torch.Tensor
    assert found.vectors.tolist() == [1.0] * 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_host_and_device_mix() -> None:
    chunks = [Features(torch.full((8,), 3.0)), Features(torch.ones(8, device="cuda:0"))]
    assert gathered(chunks).vectors.device.type == "cpu"
    documents = [gathered(chunks), gathered(chunks[1:])]
    found = score_in_groups(
        FirstValue(), documents, None, device=torch.device("cuda:0"), limit=GroupLimit(MIB)
    )
    assert found.scores == [3.0, 1.0]
