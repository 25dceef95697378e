"""Every kernel in bf16 compared with plain attention in fp32, on the GPU."""

import pytest
import torch

from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.packed.attention_choice import choose_attention
from farrank_rankers.packed.flash_kernels import FlashAttention, VarlenAttention
from farrank_rankers.packed.flex_attention import FlexAttention
from farrank_rankers.packed.pattern import Attention
from support.attention_heads import (
    PATTERNS,
    WITHIN_INPUTS,
    MakePattern,
    RandomHeads,
    alibi,
    causal,
    causal_near,
    every_token,
    near,
)

pytestmark = [
    pytest.mark.gpu,
    # Warnings of torch's compiler about itself, and about fp32 without tensor cores.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

LENGTHS = (1, 1431, 2, 127, 128, 129, 512, 3, 700, 64)
# Values have a normal distribution. bf16 has 8 bits of significand, and rounds queries, keys, values, weights
# and results.
BOUND = 2e-2

each_pattern = pytest.mark.parametrize("make", PATTERNS.values(), ids=PATTERNS)
ALL = PATTERNS | WITHIN_INPUTS
within_inputs = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


def check(attention: Attention, make: MakePattern, heads: RandomHeads) -> None:
    pattern = make(heads)
    half = heads.to(torch.bfloat16)
    # From the same rounded numbers, so that only the kernel is measured.
    wanted = half.to(torch.float32).plainly(pattern)
    with torch.inference_mode():
        mixed = half.through(attention, pattern)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), wanted, rtol=0, atol=BOUND)


def heads_of(width: int, shared_by: int = 1) -> RandomHeads:
    return RandomHeads.random(LENGTHS, heads=12, shared_by=shared_by, width=width, device="cuda")


def flash_attention() -> FlashAttention:
    try:
        return FlashAttention()
    except AttentionAbsent as absent:
        pytest.skip(str(absent))


@pytest.mark.parametrize("make", [every_token, causal, near, causal_near])
@pytest.mark.parametrize(("width", "shared_by"), [(64, 1), (32, 1), (26, 1), (64, 4)])
def test_torch_varlen(make: MakePattern, width: int, shared_by: int) -> None:
    check(VarlenAttention(), make, heads_of(width, shared_by))


@pytest.mark.parametrize("make", [every_token, causal, near, alibi, PATTERNS["causal_alibi"]])
@pytest.mark.parametrize(("width", "shared_by"), [(64, 1), (26, 1), (64, 4)])
def test_flash_attn(make: MakePattern, width: int, shared_by: int) -> None:
    check(flash_attention(), make, heads_of(width, shared_by))


@within_inputs
@pytest.mark.parametrize(("width", "shared_by"), [(64, 1), (8, 1), (64, 4)])
def test_flex(make: MakePattern, width: int, shared_by: int) -> None:
    check(FlexAttention(), make, heads_of(width, shared_by))


@each_pattern
def test_flex_between_two_streams(make: MakePattern) -> None:
    few = RandomHeads.random((1, 2, 3, 4), (1431, 5, 300, 128), heads=12, width=64, device="cuda")
    check(FlexAttention(), make, few)


@within_inputs
def test_flex_is_compiled_once_for_streams_of_any_length(make: MakePattern) -> None:
    flex = FlexAttention()
    check(flex, make, heads_of(64))
    # Kernels differ below one block of tokens; above that, one serves all.
    with torch.compiler.set_stance("fail_on_recompile"):
        for lengths in ((300,), (1431, 20), (128,) * 8):
            check(flex, make, RandomHeads.random(lengths, heads=12, width=64, device="cuda"))


@within_inputs
def test_the_chosen_attention(make: MakePattern) -> None:
    chosen = choose_attention(torch.device("cuda", 0), torch.bfloat16)
    check(chosen.attention, make, heads_of(64))
