from collections.abc import Sequence
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farrank_runtimes.runtime import DeviceLost, OutOfMemory
from farrank_server.engine.device.batch_results import run_isolated


@given(st.integers(1, 40), st.data())
def test_only_the_parts_at_fault_are_lost(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1)))
    done: list[int] = []
    lost: list[int] = []

    def run(parts: Sequence[int]) -> None:
        if bad & set(parts):
            raise ValueError("poison")
        done.extend(parts)

    def on_failure(parts: Sequence[int], error: Exception) -> None:
        if len(parts) == 1:
            lost.extend(parts)

    run_isolated(run, range(count), on_failure)
    assert sorted(done) == sorted(set(range(count)) - bad)
    assert sorted(lost) == sorted(bad)


def test_a_large_batch_is_split_until_it_fits() -> None:
    sizes: list[int] = []

    def run(parts: Sequence[int]) -> None:
        if len(parts) > 3:
            raise OutOfMemory("too large")
        sizes.append(len(parts))

    run_isolated(run, range(10), lambda parts, error: None)
    assert sum(sizes) == 10


def test_a_lost_device_is_not_asked_again() -> None:
    attempts = 0

    def run(parts: Sequence[int]) -> None:
        nonlocal attempts
        attempts += 1
        raise DeviceLost("gone")

    with pytest.raises(DeviceLost):
        run_isolated(run, range(10), lambda parts, error: None)
    assert attempts == 1


def test_results_of_a_failed_batch_are_freed_before_its_halves_run() -> None:
    class Activations:
        pass

    left: list[ref[Activations]] = []

    def run(parts: Sequence[int]) -> None:
        assert [each() for each in left] == [None] * len(left)
        activations = Activations()
        left.append(ref(activations))
        if len(parts) > 1:
            try:
                raise MemoryError
            except MemoryError as error:
                raise OutOfMemory("too large") from error

    run_isolated(run, range(4), lambda parts, error: None)
    assert len(left) == 7
