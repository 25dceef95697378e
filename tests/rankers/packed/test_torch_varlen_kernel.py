"""torch's variable-length attention is called as its documentation says; unsuitable inputs are refused."""

from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from farrank_rankers.packed.flash_kernels import VarlenAttention
from farrank_rankers.packed.pattern import CAUSAL, EVERY_TOKEN, Pattern
from support.attention_heads import RandomHeads, alibi, rescored


class Recording:
    """Replaces the kernel, which only a GPU has: it records its arguments and returns the queries."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Tensor:
        # Fails for arguments that this torch's function does not have.
        self.given = signature(varlen_attn).bind(*arguments, **named).arguments
        query: Tensor = self.given["query"]
        return query


def test_offsets_and_longest_of_both_streams_are_given() -> None:
    kernel = Recording()
    heads = RandomHeads.random((5, 20), (7, 3)).to(torch.bfloat16)
    mixed = heads.through(VarlenAttention(kernel), EVERY_TOKEN)
    assert torch.equal(mixed, heads.query)
    given = kernel.given
    assert given["cu_seq_q"].tolist() == [0, 5, 25]
    assert given["cu_seq_k"].tolist() == [0, 7, 10]
    assert given["cu_seq_q"].dtype == given["cu_seq_k"].dtype == torch.int32
    assert (given["max_q"], given["max_k"]) == (20, 7)
    assert given["scale"] == 0.25
    assert given["window_size"] == (-1, -1)
    assert given["key"] is heads.key
    assert given["value"] is heads.value


def test_causal_is_a_window_that_ends_at_the_token() -> None:
    kernel = Recording()
    heads = RandomHeads.random((5, 20)).to(torch.float16)
    heads.through(VarlenAttention(kernel), CAUSAL, 0.5)
    assert kernel.given["window_size"] == (-1, 0)
    assert kernel.given["scale"] == 0.5


@pytest.mark.parametrize(("causal", "reach"), [(False, (64, 64)), (True, (64, 0))])
def test_near_tokens_are_a_window(causal: bool, reach: tuple[int, int]) -> None:
    kernel = Recording()
    heads = RandomHeads.random((5, 200)).to(torch.bfloat16)
    heads.through(VarlenAttention(kernel), Pattern(causal=causal, window=64))
    assert kernel.given["window_size"] == reach


def test_the_kernel_shares_heads() -> None:
    kernel = Recording()
    heads = RandomHeads.random((5, 20), heads=6, shared_by=3).to(torch.float16)
    heads.through(VarlenAttention(kernel), EVERY_TOKEN)
    assert kernel.given["enable_gqa"] is True
    assert kernel.given["key"].shape == (25, 2, 16)


def test_heads_of_an_odd_width_are_widened_and_cut_again() -> None:
    kernel = Recording()
    heads = RandomHeads.random((5, 20), width=26).to(torch.float16)
    mixed = heads.through(VarlenAttention(kernel), EVERY_TOKEN)
    assert kernel.given["query"].shape == kernel.given["value"].shape == (25, 4, 32)
    assert not kernel.given["key"][..., 26:].any()
    assert kernel.given["scale"] == 26**-0.5
    assert torch.equal(mixed, heads.query)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_is_refused(dtype: torch.dtype) -> None:
    heads = RandomHeads.random((5,)).to(dtype)
    with pytest.raises(ValueError, match=rf"^query is in {dtype}; .* takes only float16 and bfloat16$"):
        heads.through(VarlenAttention(), EVERY_TOKEN)


def test_patterns_of_other_kernels_are_refused() -> None:
    heads = RandomHeads.random((5,)).to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"^pattern has slopes; .* takes none$"):
        heads.through(VarlenAttention(), alibi(heads))
    with pytest.raises(ValueError, match=r"^pattern has its own mask or scores; .* takes neither$"):
        heads.through(VarlenAttention(), rescored(heads))


def test_places_it_would_count_from_the_end_are_refused() -> None:
    heads = RandomHeads.random((5,), (7,)).to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"^asking and seen differ in length; .* counts places from their"):
        heads.through(VarlenAttention(), Pattern(causal=True))
