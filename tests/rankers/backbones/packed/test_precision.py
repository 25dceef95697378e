"""Streams in bf16, on a GPU with its fused attention, compared with padded batches in bf16 and in fp32."""

from copy import deepcopy

import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor

from farrank_rankers.encoder import Encoder
from farrank_rankers.files.weights import place
from farrank_rankers.packed.attention_choice import choose_attention
from farrank_rankers.packed.packed_backbone import Compile, as_written, compiled
from farrank_rankers.packed_encoder import PackedEncoder
from support.packed_backbones import LENGTHS, inputs_of, packed_states, padded_states

ON_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_CARD)]
DOCUMENTS = 60
DIRECTIONS = 16


def in_bf16(encoder: Encoder, device: str, compile_by: Compile = as_written) -> tuple[Encoder, PackedEncoder]:
    """Copy an encoder to a device, and pack the copy with the attention chosen for that device."""
    half = deepcopy(encoder)
    place(half, torch.device(device), torch.bfloat16)
    attention = choose_attention(torch.device(device), torch.bfloat16).attention
    return half, PackedEncoder(half, attention, compile_by)


def error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the root mean square of the differences, relative to that of the values."""
    mine, theirs = (torch.cat(each).cpu().float() for each in (found, expected))
    return float((mine - theirs).square().mean().sqrt() / theirs.square().mean().sqrt())


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # inductor, when imported
@pytest.mark.parametrize(
    ("device", "compile_by"),
    [
        ("cpu", as_written),
        pytest.param("cuda", as_written, marks=ON_CARD),
        pytest.param("cuda", compiled, marks=ON_CARD),
    ],
)
@pytest.mark.parametrize("padding", [0, 7])
def test_states(encoder: Encoder, device: str, compile_by: Compile, padding: int) -> None:
    """A step of bf16 is 0.4% to 0.8% of a value. A few steps add up over two layers, packed or not."""
    inputs = inputs_of(encoder, LENGTHS, padding)
    exact = padded_states(encoder, inputs)
    half, packing = in_bf16(encoder, device, compile_by)
    padded = padded_states(half, inputs)
    packed = packed_states(packing, inputs, device)
    assert {each.dtype for each in packed} == {torch.bfloat16}
    assert error(packed, exact) < 0.025
    assert error(packed, exact) < 1.2 * error(padded, exact)
    assert error(packed, padded) < 0.02


@pytest.mark.parametrize("device", DEVICES)
def test_rankings(encoder: Encoder, device: str) -> None:
    """Documents' mean vectors are ranked along random directions, as possible weights of a head."""
    generator = torch.Generator().manual_seed(5)
    inputs = inputs_of(encoder, torch.randint(30, 300, (DOCUMENTS,), generator=generator).tolist())
    exact, packed = (
        torch.stack([each[:, -1].cpu().double().mean(dim=0) for each in states])  # (P, H)
        for states in (
            padded_states(encoder, inputs),
            packed_states(in_bf16(encoder, device)[1], inputs, device),
        )
    )
    directions = torch.randn(exact.shape[1], DIRECTIONS, generator=generator).double()
    pairs = zip((exact @ directions).T, (packed @ directions).T, strict=True)  # (P,) each
    agreement = [float(kendalltau(mine, theirs).statistic) for mine, theirs in pairs]
    assert sum(agreement) / DIRECTIONS >= 0.98
