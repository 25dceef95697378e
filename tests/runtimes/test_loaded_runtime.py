"""The warm-up goes on if memory is short."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from farrank_rankers.tokens import EncoderInput
from farrank_runtimes import loaded_runtime
from farrank_runtimes.loaded_runtime import measure_speed
from farrank_runtimes.runtime import CompletedBatch, OutOfMemory


class Narrow:
    """Has room for a limited number of tokens, and records each batch's number."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.met: list[int] = []

    def encode(self, inputs: Sequence[EncoderInput]) -> CompletedBatch:
        tokens = sum(each.tokens for each in inputs)
        self.met.append(tokens)
        if tokens > self.room:
            raise OutOfMemory(f"{tokens} tokens")
        return CompletedBatch([], 0.0)


def test_a_batch_that_does_not_fit_is_halved() -> None:
    narrow = Narrow(room=300)
    assert measure_speed(narrow.encode, 100, 1000) > 0
    assert narrow.met == [992, 496, 240] + [1000, 500, 200] * 3


def test_an_input_that_does_not_fit_stops_the_start() -> None:
    with pytest.raises(OutOfMemory, match=r"^100 tokens$"):
        measure_speed(Narrow(room=99).encode, 100, 1000)


@pytest.mark.parametrize(("seconds", "runs"), [(60.0, 1), (6.0, 2), (1.0, 3)])
def test_long_batches_that_take_long_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch, seconds: float, runs: int
) -> None:
    narrow, clock = Narrow(room=10_000), [0.0]

    def encode(inputs: Sequence[EncoderInput]) -> CompletedBatch:
        clock[0] += seconds
        return narrow.encode(inputs)

    monkeypatch.setattr(loaded_runtime, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert measure_speed(encode, 8_157, 4_096) == pytest.approx(8_157 / seconds)
    assert narrow.met == [4_096] + [8_157] * runs
