"""BigBird on streams: an input's blocks are its own, by position, however few they are."""

from typing import Any

import pytest
import torch

from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support.packed_backbones import Case, MakeEncoder, inputs_of, packed_states, padded_states

# With 3 random blocks, inputs of up to 12 blocks have 12 blocks: of 8 tokens up to 96, of 64 tokens up to
# 768. transformers would switch to full attention at 88 and 704.
SIZES: dict[str, tuple[dict[str, int], tuple[int, ...]]] = {
    "small blocks": ({"block_size": 8}, (1, 8, 9, 87, 88, 89, 95, 96, 97, 104, 105, 300, 1431)),
    "one random block": ({"block_size": 8, "num_random_blocks": 1}, (1, 55, 56, 57, 63, 64, 65, 200)),
    "blocks as published": ({"block_size": 64}, (100, 704, 768, 769, 1431)),
}


@pytest.mark.parametrize(("changes", "lengths"), SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("padding", [0, 23])
def test_states_of_few_blocks_and_many(
    make_encoder: MakeEncoder, changes: dict[str, Any], lengths: tuple[int, ...], padding: int
) -> None:
    encoder = make_encoder(Case("big_bird", changes))
    assert encoder.backbone.attention_type == "block_sparse"
    inputs = inputs_of(encoder, lengths, padding)
    packed = PackedEncoder(encoder, plain_attention)
    for mine, theirs in zip(packed_states(packed, inputs), padded_states(encoder, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_far_tokens_are_seen_by_outer_blocks_alone(make_encoder: MakeEncoder) -> None:
    """The comparisons above would notice if every token saw all others."""
    encoder = make_encoder(Case("big_bird", {"block_size": 8}))
    inputs, changed = inputs_of(encoder, (200,)), inputs_of(encoder, (200,))
    changed[0].input_ids[100] = 5 if inputs[0].input_ids[100] != 5 else 6
    packed = PackedEncoder(encoder, plain_attention)
    first, second = (packed_states(packed, each)[0][:, 1] for each in (inputs, changed))  # after one layer
    moved = (first - second).abs().amax(dim=1) > 1e-7
    assert moved[:8].all()
    assert not moved[8:88].any()
    assert moved[88:112].all()  # block 12 and its neighbours
    assert not moved[112:192].any()
    assert moved[192:].all()
