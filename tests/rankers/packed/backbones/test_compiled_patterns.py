"""Scores of backbones go into FlexAttention's kernel, compiled once for all layers and streams."""

from collections.abc import Iterator

import pytest
import torch

from farrank_rankers.packed.flex_attention import FlexAttention
from farrank_rankers.packed.packed_encoder import PackedEncoder
from farrank_rankers.packed.plain_attention import plain_attention
from support.packed_backbones import CASES, MakeEncoder, inputs_of, packed_states


@pytest.fixture
def _stance() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")


# Without Longformer: of its mask torch 2.13 makes C++ that does not compile, for it puts a size's name in
# place of another that begins with it. On a GPU there is no C++.
@pytest.mark.slow
@pytest.mark.timeout(600)
# torch warns of itself.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.usefixtures("_stance")
@pytest.mark.parametrize("name", ["big_bird", "deberta-v2"])
def test_compiled_once(make_encoder: MakeEncoder, name: str) -> None:
    encoder = make_encoder(CASES[name])
    flex, plain = (PackedEncoder(encoder, attention) for attention in (FlexAttention(), plain_attention))
    # 5 blocks first: torch takes sizes that are equal by chance, as of blocks and heads, for the same.
    for lengths in ((17, 130, 400), (40,), (128, 256), (3, 500, 1, 44)):
        inputs = inputs_of(encoder, lengths)
        for mine, theirs in zip(packed_states(flex, inputs), packed_states(plain, inputs), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-5)
        torch.compiler.set_stance("fail_on_recompile")
