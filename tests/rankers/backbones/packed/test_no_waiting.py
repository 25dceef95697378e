"""Between upload and features, the host reads no value of a tensor, and so never waits for a GPU."""

import copy

import pytest
import torch
from torch import Tensor

from farrank_rankers.encoder import Encoder
from farrank_rankers.packed.pattern import Heads, Pattern
from farrank_rankers.packed_encoder import PackedEncoder
from farrank_rankers.tokens import EncoderInput
from support.packed_backbones import CASES, packed_states


def shaped(heads: Heads, pattern: Pattern) -> Tensor:
    """Replace a kernel. It asks for a pattern's facts about pairs, as kernels do."""
    nothing = heads.asking.offsets.new_zeros(1)
    if pattern.rescored is not None:
        assert pattern.rescored(heads.query.new_zeros(1), nothing, nothing, nothing, nothing).shape == (1,)
    if pattern.sees is not None:
        assert pattern.sees(nothing, nothing, nothing, nothing).shape == (1,)
    assert len(heads.query) == sum(heads.asking.lengths)
    assert len(heads.key) == sum(heads.seen.lengths)
    return torch.empty_like(heads.query)


ROTARY = ("llama", "qwen2", "qwen3", "gemma", "gemma2")


# transformers' own rotary positions do not work on the meta device.
@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.made_as not in (*ROTARY, "modernbert")]
)
def test_tensors_without_values_do(encoder: Encoder, inputs: list[EncoderInput]) -> None:
    """On torch's meta device tensors have only shapes: reading a value raises an error."""
    bare = copy.deepcopy(encoder).to("meta")
    states = packed_states(PackedEncoder(bare, shaped), inputs, "meta")
    assert [len(each) for each in states] == [len(item.input_ids) for item in inputs]
