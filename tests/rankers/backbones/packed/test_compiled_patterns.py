"""Masks and scores of backbones work in FlexAttention's kernel, compiled once for all layers and streams."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import flex_attention

from farrank_rankers.packed.flex_attention import FlexAttention
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed_encoder import PackedEncoder
from support.packed_backbones import CASES, MakeEncoder, inputs_of, packed_states

# The number of kernels: one for each pattern. Longformer has one for its global tokens, too.
KERNELS = {"big_bird": 1, "deberta-v2": 1, "longformer": 2}


# Only the graphs are compiled. For some masks torch 2.13 generates C++ that does not compile, because it
# replaces a size's name within another name that begins with it. On a GPU there is no C++.
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_once(make_encoder: MakeEncoder, name: str) -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    kernel = torch.compile(flex_attention, backend=counter, dynamic=True, fullgraph=True)
    encoder = make_encoder(CASES[name])
    flex, plain = (PackedEncoder(encoder, each) for each in (FlexAttention(kernel), plain_attention))
    settled = 0
    # 5 blocks first: torch takes sizes that happen to be equal, e.g. of blocks and heads, for the same size.
    for lengths in ((17, 130, 400), (40,), (128, 256), (3, 500, 1, 44)):
        inputs = inputs_of(encoder, lengths)
        for mine, theirs in zip(packed_states(flex, inputs), packed_states(plain, inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)
        # The first layers may be compiled twice, before and after torch has seen which sizes vary.
        settled = settled or counter.frame_count
        assert KERNELS[name] <= settled == counter.frame_count <= KERNELS[name] + 1
