"""FlexAttention gives backbones the results of plain attention, within the blocks that it computes.

It also applies masks to tokens of different inputs, and skips the blocks that a pattern promises not to need.
Plain attention cannot find errors in either.
"""

from collections.abc import Iterator

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from farrank_rankers.encoder import Encoder
from farrank_rankers.packed.flex_attention import FlexAttention
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support.attention_heads import block_by_block
from support.packed_backbones import inputs_of, packed_states


@pytest.fixture(autouse=True, scope="module")
def _uncompiled() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        yield


@pytest.mark.parametrize(("lengths", "padding"), [((17, 1, 700, 2, 129, 200), 0), ((400, 20, 300), 23)])
def test_masks_and_scores_hold_within_their_blocks(
    encoder: Encoder, lengths: tuple[int, ...], padding: int
) -> None:
    inputs = inputs_of(encoder, lengths, padding)
    expected = packed_states(PackedEncoder(encoder, plain_attention), inputs)
    found = packed_states(PackedEncoder(encoder, FlexAttention(block_by_block)), inputs)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)
