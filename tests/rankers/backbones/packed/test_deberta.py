"""DeBERTa on streams, with every form of its attention to distances."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from farrank_rankers.backbones.deberta import distance_slots
from farrank_rankers.errors import SourceError
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support.packed_backbones import Case, MakeEncoder, inputs_of, packed_states, padded_states

MakeBackbone = Callable[..., Path]

# 16 buckets up to 64 positions: inputs have single distances and distances that share the last bucket.
FURTHEST = {"max_relative_positions": 64}
KINDS: dict[str, dict[str, Any]] = {
    "as v3": {},
    "contents that ask for distances": {"pos_att_type": "c2p"},
    "distances that ask for contents": {"pos_att_type": "p2c"},
    "no kind": {"pos_att_type": []},
    "layers of its own": {"share_att_key": False},
    "layers of its own, for one kind": {"share_att_key": False, "pos_att_type": "p2c"},
    "no buckets": {"position_buckets": -1},
    "no norm": {"norm_rel_ebd": "none"},
    "positions and segments": {"position_biased_input": True, "type_vocab_size": 2},
    "not relative": {"relative_attention": False, "position_biased_input": True},
    "narrow embeddings": {"embedding_size": 16},
}


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("padding", [0, 7])
def test_states_are_those_of_transformers(
    make_encoder: MakeEncoder, changes: dict[str, Any], padding: int
) -> None:
    encoder = make_encoder(Case("deberta-v2", FURTHEST | changes))
    inputs = inputs_of(encoder, (1, 2, 12, 63, 64, 65, 160), padding)
    packed = PackedEncoder(encoder, plain_attention)
    for mine, theirs in zip(packed_states(packed, inputs), padded_states(encoder, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_long_inputs_are_read_past_the_distances_of_the_table(make_encoder: MakeEncoder) -> None:
    """As long as documents are, with half of v3's buckets: beyond 256 positions all distances are equal."""
    encoder = make_encoder(Case("deberta-v2", {"position_buckets": 128, "max_relative_positions": 256}))
    inputs = inputs_of(encoder, (1431,))
    packed = PackedEncoder(encoder, plain_attention)
    found, expected = packed_states(packed, inputs)[0], padded_states(encoder, inputs)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)  # sums over more tokens


def test_distances_move_what_is_seen(make_encoder: MakeEncoder) -> None:
    """The comparisons above would notice if nothing were added to the scores."""
    encoder = make_encoder(Case("deberta-v2", FURTHEST))
    inputs = inputs_of(encoder, (65,))
    before = packed_states(PackedEncoder(encoder, plain_attention), inputs)[0]
    with torch.no_grad():
        encoder.backbone.encoder.rel_embeddings.weight.mul_(-1)  # type: ignore[union-attr, operator]
    after = packed_states(PackedEncoder(encoder, plain_attention), inputs)[0]
    assert float((before - after).abs().max()) > 0.1


@pytest.mark.parametrize(
    ("buckets", "furthest"), [(256, 512), (16, 2048), (16, 64), (2, 9), (32, 33), (-1, 40)]
)
def test_buckets_are_those_of_transformers(buckets: int, furthest: int) -> None:
    distances = torch.arange(-5 * furthest, 5 * furthest + 1)
    rows, span = distances, furthest
    if buckets > 0:
        rows, span = make_log_bucket_position(distances, buckets, furthest).long(), buckets
    expected = (rows + span).clamp(0, 2 * span - 1)
    slots = distance_slots(buckets, furthest)
    reach = len(slots) // 2
    assert torch.equal(slots[distances.clamp(-reach, reach) + reach].long(), expected)


@pytest.mark.parametrize("changes", [{"conv_kernel_size": 3}, {"position_buckets": 15}], ids=str)
def test_variants_that_are_left_to_padded_batches(make_encoder: MakeEncoder, changes: dict[str, int]) -> None:
    with pytest.raises(SourceError, match="deberta-v2"):
        PackedEncoder(make_encoder(Case("deberta-v2", changes)), plain_attention)
