"""Batches are as full as possible and in order, and each one starts before the previous one is awaited."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farrank_bench.gpu.speeds import speed_row
from farrank_bench.offline import RuntimeAlone
from farrank_bench.report import PartlyFailed, Row
from farrank_bench.rounds import ContenderFailed, PassResult, Rounds, measure_rounds, whole
from farrank_exporters.parity import batches_in_order
from farrank_rankers.features import Features
from farrank_rankers.tokens import EncoderInput
from farrank_runtimes.runtime import Capabilities, DocumentScores, OutOfMemory


def input_of(length: int) -> EncoderInput:
    zeros = np.zeros(length, dtype=np.int32)
    return EncoderInput(zeros, zeros + 3, zeros)


def positions(batch: Sequence[EncoderInput], *, padded: bool) -> int:
    lengths = [item.tokens for item in batch]
    return len(lengths) * max(lengths) if padded else sum(lengths)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120), st.booleans())
def test_batches_keep_the_order_and_none_could_take_one_more(
    lengths: list[int], most: int, padded: bool
) -> None:
    inputs = list(map(input_of, lengths))
    batches = list(batches_in_order(inputs, most, padded=padded))
    assert [item for batch in batches for item in batch] == inputs
    for batch, after in zip(batches, [*batches, []][1:], strict=True):
        assert len(batch) == 1 or positions(batch, padded=padded) <= most
        assert not after or positions([*batch, after[0]], padded=padded) > most


@dataclass
class Recording:
    """A runtime that records its batches, and has memory for a limited number of inputs at once."""

    room: int
    asked: list[str] = field(default_factory=list)

    def encode(self, inputs: Sequence[EncoderInput]) -> "Recorded":
        if len(inputs) > self.room:
            raise OutOfMemory(f"{len(inputs)} inputs")
        self.asked.append(f"begin {len(inputs)}")
        return Recorded(self, inputs)

    def capabilities(self) -> Capabilities:
        return Capabilities("torch", "cpu", "fp32", 80)

    # The benchmark only encodes, so the methods below are never called.
    def score(
        self, documents: Sequence[Features], queries: Sequence[Features] | None = None
    ) -> DocumentScores:
        raise NotImplementedError

    def warm_up(self) -> float:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


@dataclass
class Recorded:
    runtime: Recording
    inputs: Sequence[EncoderInput]

    def rows(self) -> list[Features]:
        self.runtime.asked.append(f"wait {len(self.inputs)}")
        return [Features(torch.zeros(1))] * len(self.inputs)

    def device_s(self) -> float:
        return 0.0


def test_the_next_batch_is_begun_before_the_last_is_waited_for() -> None:
    runtime = Recording(room=8)
    scored = RuntimeAlone(runtime, [input_of(10)] * 20, 1, padded=False).score()
    assert runtime.asked == ["begin 8", "begin 8", "wait 8", "begin 4", "wait 8", "wait 4"]
    assert scored.count == 20


def test_batches_that_do_not_fit_are_halved_and_reported() -> None:
    form = RuntimeAlone(Recording(room=2), [input_of(10)] * 6, 2, padded=True)
    assert form.score().count == 12
    assert form.max_tokens == 20
    row = speed_row("padded", form, Rounds({"padded": [3.0]}))
    assert row == Row("pairs/s, padded, batches of up to 20 tokens", "3.0 (3.0 to 3.0)")


def test_one_input_that_does_not_fit_fails_the_form_alone() -> None:
    forms = {
        "packed": RuntimeAlone(Recording(room=0), [input_of(10)], 1, padded=False),
        "padded": RuntimeAlone(Recording(room=1), [input_of(10)], 1, padded=True),
    }
    with pytest.raises(ContenderFailed, match="one input alone does not fit: 1 inputs"):
        forms["packed"].score()
    found = measure_rounds({name: form.score for name, form in forms.items()}, 1)
    rows = [speed_row(name, form, found) for name, form in forms.items()]
    assert rows[0].measured == "not measured: one input alone does not fit: 1 inputs"
    with pytest.raises(PartlyFailed, match="failed: packed") as raised:
        whole(rows, found)
    assert raised.value.rows == rows
    assert whole(rows, Rounds()) == rows


def test_a_section_whose_time_is_over_ends_with_all_its_forms() -> None:
    asked: list[None] = []

    def check_time() -> None:
        asked.append(None)
        if len(asked) == 3:
            raise TimeoutError("not done after 900 s")

    runtime = Recording(room=1)
    form = RuntimeAlone(runtime, [input_of(1)], 9, check_time=check_time)
    with pytest.raises(TimeoutError, match="not done after 900 s"):
        measure_rounds({"packed": form.score}, 1)
    assert runtime.asked == ["begin 1", "wait 1"] * 2


def test_any_other_error_names_itself() -> None:
    class Broken(Recording):
        def encode(self, inputs: Sequence[EncoderInput]) -> Recorded:
            raise RuntimeError("no kernel image")

    def score() -> PassResult:
        return RuntimeAlone(Broken(room=1), [input_of(1)], 1, padded=False).score()

    with pytest.raises(ContenderFailed, match="RuntimeError: no kernel image"):
        score()
