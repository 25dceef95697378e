"""Streams in bf16 are as close to fp32 as padded batches in bf16."""

import copy

import pytest
import torch
from torch import Tensor

from farrank_rankers.encoder import Encoder
from farrank_rankers.packed.flex_attention import FlexAttention
from farrank_rankers.packed.pattern import Attention
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support.packed_backbones import CASES, Case, MakeEncoder, inputs_of, packed_states, padded_states

# Backbones with their own masks or scores. All others use kernels that have their own tests.
OWN_PATTERNS = ("big_bird", "deberta-v2", "longformer")
# A multiple of transformers' error in bf16. Rounding differs, because scores are added in another order.
FACTOR = 1.5


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the root mean square of the last states' differences, relative to the states'."""
    mine, theirs = (torch.cat([each[:, -1].float().cpu() for each in states]) for states in (found, expected))
    return float((mine - theirs).norm() / theirs.norm())


def check(encoder: Encoder, attention: Attention, lengths: tuple[int, ...], device: str) -> None:
    inputs = inputs_of(encoder, lengths, padding=7)
    exact = padded_states(encoder, inputs)
    half = copy.deepcopy(encoder).to(device, torch.bfloat16)
    padded = error(padded_states(half, inputs), exact)
    packed = error(packed_states(PackedEncoder(half, attention), inputs, device), exact)
    assert 1e-3 < padded < 0.1
    assert packed < FACTOR * padded


@pytest.mark.parametrize("name", OWN_PATTERNS)
def test_on_a_cpu(make_encoder: MakeEncoder, name: str) -> None:
    check(make_encoder(CASES[name]), plain_attention, (17, 130, 64, 300), "cpu")


# As published, but with fewer layers: heads of 64, windows of 512, blocks of 64, 256 buckets.
PUBLISHED = {
    "big_bird": {"block_size": 64},
    "deberta-v2": {"position_buckets": 256, "max_relative_positions": 512},
    "longformer": {"attention_window": 512},
}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize(("name", "changes"), PUBLISHED.items(), ids=PUBLISHED)
def test_on_a_gpu(make_encoder: MakeEncoder, name: str, changes: dict[str, int]) -> None:
    """Compiled FlexAttention runs with the backbone's own mods."""
    wide = {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "initializer_range": 0.04,
    }
    encoder = make_encoder(Case(name, wide | changes))
    check(encoder, FlexAttention(), (17, 1431, 512, 1, 769, 128), "cuda")
