"""Streams give every token of every input the same state as padded batches, in every layer."""

from typing import Any

import pytest
import torch
from torch import Tensor

from farrank_rankers.encoder import Encoder
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.tokens import EncoderInput
from support.packed_backbones import (
    CASES,
    LENGTHS,
    Case,
    MakeEncoder,
    inputs_of,
    packed_states,
    padded_states,
)


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_streams_and_padded_batches_agree(encoder: Encoder, inputs: list[EncoderInput]) -> None:
    expected = padded_states(encoder, inputs)
    config: Any = encoder.backbone.config
    assert expected[0].shape == (17, config.num_hidden_layers + 2, config.hidden_size)
    spread = torch.cat([each[:, -1] for each in expected]).std(dim=0)
    assert spread.min() > 0.1  # far more than the tolerance
    assert_same(packed_states(PackedEncoder(encoder, plain_attention), inputs), expected)


def test_companions_and_their_order_change_nothing(encoder: Encoder, inputs: list[EncoderInput]) -> None:
    packed = PackedEncoder(encoder, plain_attention)
    alone = [packed_states(packed, [item])[0] for item in inputs]
    for order in (range(len(inputs)), [5, 0, 7, 1, 3, 2, 6, 4]):
        together = packed_states(packed, [inputs[index] for index in order])
        assert_same(together, [alone[index] for index in order])


@pytest.mark.parametrize("padding", [1, 23])
def test_places_left_free_behind_the_query(encoder: Encoder, padding: int) -> None:
    inputs = inputs_of(encoder, LENGTHS, padding)
    assert_same(
        packed_states(PackedEncoder(encoder, plain_attention), inputs), padded_states(encoder, inputs)
    )


@pytest.mark.parametrize("case", [each for each in CASES.values() if each.takes_positions])
def test_positions_in_steps(case: Case, make_encoder: MakeEncoder) -> None:
    encoder = make_encoder(case)
    encoder.position_step = 16  # inputs of up to 127 tokens are stretched, for RoBERTa's kind of up to 126
    inputs = inputs_of(encoder, LENGTHS)
    expected = padded_states(encoder, inputs)
    assert_same(packed_states(PackedEncoder(encoder, plain_attention), inputs), expected)
    encoder.position_step = 1
    assert not torch.allclose(padded_states(encoder, inputs)[0], expected[0], atol=1e-2)
