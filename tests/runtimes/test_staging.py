"""Tokens reach the device as they were packed, in memory that no batch in flight still reads."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farrank_runtimes.cuda_queue import ALIGNED, Stage, StagingRing
from support.packings import packing_of

CPU = torch.device("cpu")


@given(st.lists(st.lists(st.integers(1, 70), min_size=1, max_size=40), min_size=1, max_size=5))
def test_what_arrives_is_what_was_packed(batches: list[list[int]]) -> None:
    stage = Stage(CPU)
    for seed, lengths in enumerate(batches):
        packing = packing_of(lengths, seed)
        tokens, offsets = stage.upload(packing)
        assert (tokens.dtype, offsets.dtype) == (torch.int32, torch.int32)
        assert np.array_equal(tokens.numpy(), packing.tokens)
        assert np.array_equal(offsets.numpy(), packing.offsets)
        # Each row whole, and where a kernel's wide reads begin.
        starts = [row.data_ptr() for row in tokens] + [offsets.data_ptr()]
        assert {(start - starts[-1]) % (4 * ALIGNED) for start in starts} == {0}
        assert all(row.is_contiguous() for row in [*tokens, offsets])


def test_room_is_kept_for_the_next_batch() -> None:
    stage = Stage(CPU)
    large, _ = stage.upload(packing_of([500, 400]))
    small, _ = stage.upload(packing_of([3]))
    again, _ = stage.upload(packing_of([500, 400]))
    assert large.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()
    assert small.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()
    larger, _ = stage.upload(packing_of([5000]))
    assert larger.untyped_storage().nbytes() < 4 * 2 * 5 * 5200


def test_room_that_cannot_be_had_leaves_the_stage_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, packing = Stage(CPU), packing_of([5, 7])
    stage.upload(packing)
    allocate, left = torch.empty, [1]

    def empty(*size: int, **options: object) -> torch.Tensor:
        if not left.pop():
            raise torch.OutOfMemoryError("no more")
        left.append(0)
        return allocate(*size, **options)  # type: ignore[call-overload,no-any-return]

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", empty)
        with pytest.raises(torch.OutOfMemoryError):
            stage.upload(packing_of([5000]))
    assert np.array_equal(stage.upload(packing_of([5000]))[0].numpy(), packing_of([5000]).tokens)


class End:
    """A batch's end that counts who waited for it."""

    def __init__(self) -> None:
        self.waited = 0

    def synchronize(self) -> None:
        self.waited += 1


def test_a_stage_comes_back_when_its_batch_has_ended() -> None:
    ring, ends, stages = StagingRing(CPU), [End() for _ in range(5)], []
    for number, end in enumerate(ends):
        stages.append(ring.free())
        stages[-1].last = end
        assert [each.waited for each in ends] == [int(each <= number - 2) for each in range(5)]
    assert stages[0] is stages[2] is stages[4]
    assert stages[1] is stages[3]
    assert stages[0] is not stages[1]


def test_a_batch_that_was_never_begun_is_not_waited_for() -> None:
    ring, end = StagingRing(CPU), End()
    ring.free().last = end
    for _ in range(4):
        ring.free()
    assert end.waited == 1
