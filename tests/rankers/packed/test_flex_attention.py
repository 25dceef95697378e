"""FlexAttention gives the results of plain attention, whatever the pattern."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

from farrank_rankers.packed.flex_attention import FlexAttention
from farrank_rankers.packed.pattern import CAUSAL, EVERY_TOKEN
from support.attention_heads import (
    PATTERNS,
    WITHIN_INPUTS,
    MakePattern,
    RandomHeads,
    alibi,
    block_by_block,
    near,
    window,
)

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=4).map(tuple)
each_pattern = pytest.mark.parametrize("make", PATTERNS.values(), ids=PATTERNS)
ALL = PATTERNS | WITHIN_INPUTS


@pytest.fixture(autouse=True, scope="module")
def _uncompiled() -> Iterator[None]:
    """Every pattern would otherwise be compiled. Uncompiled, torch warns that it is slow."""
    with pytest.MonkeyPatch.context() as changed, torch.inference_mode():
        changed.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        yield


def attention() -> FlexAttention:
    return FlexAttention(block_by_block)


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
@given(lengths=LENGTHS)
@example(lengths=(128, 256))
@example(lengths=(1,))
@settings(max_examples=15)
def test_inputs_that_see_themselves(make: MakePattern, lengths: tuple[int, ...]) -> None:
    heads = RandomHeads.random(lengths)
    pattern = make(heads)
    torch.testing.assert_close(heads.through(attention(), pattern), heads.plainly(pattern), rtol=0, atol=1e-5)


@each_pattern
@given(asking=LENGTHS, seen=LENGTHS)
@example(asking=(2, 2), seen=(300, 1))
@settings(max_examples=15)
def test_inputs_that_see_other_streams(
    make: MakePattern, asking: tuple[int, ...], seen: tuple[int, ...]
) -> None:
    heads = RandomHeads.random(asking, (seen * len(asking))[: len(asking)])
    pattern = make(heads)
    torch.testing.assert_close(heads.through(attention(), pattern), heads.plainly(pattern), rtol=0, atol=1e-5)


@each_pattern
@pytest.mark.parametrize(("width", "scale"), [(8, None), (16, 0.3), (26, 1.0)])
def test_shared_heads_of_any_width_and_scale(make: MakePattern, width: int, scale: float | None) -> None:
    heads = RandomHeads.random((5, 200, 60), heads=6, shared_by=3, width=width)
    pattern = make(heads)
    mixed = heads.through(attention(), pattern, scale)
    assert mixed.shape == heads.query.shape
    torch.testing.assert_close(mixed, heads.plainly(pattern, scale), rtol=0, atol=1e-5)


class Recording:
    """A kernel that records block masks."""

    def __init__(self) -> None:
        self.masks: list[Any] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.masks.append(named["block_mask"])
        return block_by_block(*arguments, **named)


def test_layers_share_what_their_inputs_need() -> None:
    kernel = Recording()
    flex = FlexAttention(kernel)
    heads = RandomHeads.random((40, 300))
    sliding = window(heads)
    for pattern in (
        EVERY_TOKEN,
        EVERY_TOKEN,
        CAUSAL,
        sliding,
        sliding,
        alibi(heads),
        near(heads),
        near(heads),
    ):
        heads.through(flex, pattern)
    lists = [mask.kv_indices.data_ptr() for mask in kernel.masks]
    # Slopes change no block.
    assert lists[0] == lists[1] == lists[5]
    assert lists[3] == lists[4]
    assert lists[6] == lists[7]
    assert len(set(lists)) == 4


def test_prepared_masks_are_freed_with_their_stream() -> None:
    flex = attention()
    heads = RandomHeads.random((40, 30))
    heads.through(flex, EVERY_TOKEN)
    assert len(flex._prepared) == 1
    del heads
    gc.collect()
    assert len(flex._prepared) == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's compiler uses it, too
def test_compiled_once_for_streams_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled FlexAttention reads the block lists, and computes only their blocks."""
    torch.compiler.reset()
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    flex = FlexAttention()

    def agree(*lengths: int) -> None:
        heads = RandomHeads.random(lengths)
        mixed = heads.through(flex, CAUSAL)
        torch.testing.assert_close(mixed, heads.plainly(CAUSAL), rtol=0, atol=1e-5)

    agree(70, 300)
    with torch.compiler.set_stance("fail_on_recompile"):
        agree(5)
        agree(128, 256)
        agree(3, 500, 1, 44)
