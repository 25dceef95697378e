"""flash_attn is called as its documentation says, and the reason is given when it cannot be used."""

import importlib.metadata
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.packed.flash_kernels import FlashAttention
from farrank_rankers.packed.pattern import CAUSAL, EVERY_TOKEN, Pattern
from support.attention_heads import RandomHeads, alibi, rescored


class StandIn(ModuleType):
    """Replaces flash_attn, which only GPUs have: it has the README's parameters and records arguments."""

    def __init__(self) -> None:
        super().__init__("flash_attn")
        self.given: dict[str, Any] = {}

    def flash_attn_varlen_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Tensor:
        self.given = {name: value for name, value in locals().items() if name != "self"}
        return q


def install(monkeypatch: pytest.MonkeyPatch, version: str) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr("farrank_rankers.packed.flash_kernels.version", lambda name: version)
    monkeypatch.setitem(sys.modules, "flash_attn", stand_in)
    return stand_in


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return install(monkeypatch, "2.8.3")


def test_every_token(stand_in: StandIn) -> None:
    heads = RandomHeads.random((5, 20), (7, 3), heads=6, shared_by=3).to(torch.bfloat16)
    attention = FlashAttention()
    mixed = heads.through(attention, EVERY_TOKEN)
    assert attention.version == "2.8.3"
    assert torch.equal(mixed, heads.query)
    given = stand_in.given
    assert given["k"].shape == given["v"].shape == (10, 2, 16)
    assert given["cu_seqlens_q"].tolist() == [0, 5, 25]
    assert given["cu_seqlens_k"].tolist() == [0, 7, 10]
    assert given["cu_seqlens_q"].dtype == given["cu_seqlens_k"].dtype == torch.int32
    assert (given["max_seqlen_q"], given["max_seqlen_k"]) == (20, 7)
    assert (given["softmax_scale"], given["causal"], given["alibi_slopes"]) == (0.25, False, None)
    assert (given["dropout_p"], given["window_size"]) == (0.0, (-1, -1))


def test_slopes_are_given_in_fp32(stand_in: StandIn) -> None:
    heads = RandomHeads.random((5, 20), width=26).to(torch.float16)
    slopes = alibi(heads).slopes
    assert slopes is not None
    mixed = heads.through(FlashAttention(), Pattern(causal=True, slopes=slopes.half()), 0.5)
    given = stand_in.given
    assert given["causal"] is True
    assert given["alibi_slopes"].dtype == torch.float32
    assert torch.equal(given["alibi_slopes"], slopes)
    assert given["softmax_scale"] == 0.5
    assert given["q"].shape == (25, 4, 32)
    assert torch.equal(mixed, heads.query)


@pytest.mark.parametrize(("causal", "reach"), [(False, (64, 64)), (True, (64, 0))])
def test_near_tokens_are_a_window(stand_in: StandIn, causal: bool, reach: tuple[int, int]) -> None:
    heads = RandomHeads.random((5, 200)).to(torch.bfloat16)
    heads.through(FlashAttention(), Pattern(causal=causal, window=64))
    assert (stand_in.given["window_size"], stand_in.given["causal"]) == (reach, causal)


def test_unsuitable_inputs_are_refused(stand_in: StandIn) -> None:
    heads = RandomHeads.random((5,), (7,))
    with pytest.raises(ValueError, match=r"^query is in torch.float32; flash_attn takes only float16"):
        heads.through(FlashAttention(), EVERY_TOKEN)
    half = heads.to(torch.float16)
    with pytest.raises(ValueError, match=r"^pattern has its own mask or scores; flash_attn takes"):
        half.through(FlashAttention(), rescored(half))
    for placed in (CAUSAL, alibi(half), Pattern(window=3)):
        with pytest.raises(ValueError, match=r"^asking and seen differ in length; flash_attn counts places"):
            half.through(FlashAttention(), placed)
    assert not stand_in.given


def test_one_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("farrank_rankers.packed.flash_kernels.version", absent)
    with pytest.raises(AttentionAbsent, match=r"^flash_attn is not installed$"):
        FlashAttention()


@pytest.mark.parametrize("version", ["1.0.9", "2.3.6", "3.0.0b1"])
def test_releases_that_are_not_served_are_named(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    install(monkeypatch, version)
    named = rf"^flash_attn {version} is installed; releases from 2\.4 to below 3 are served$"
    with pytest.raises(AttentionAbsent, match=named):
        FlashAttention()


@pytest.mark.parametrize("version", ["2.4.0", "2.7.4.post1", "2.8.3+cu12torch2.8"])
def test_releases_that_are_served(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    install(monkeypatch, version)
    assert FlashAttention().version == version


def test_one_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "2.8.3")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(
        AttentionAbsent, match=r"^flash_attn 2\.8\.3 does not load: import of flash_attn halted"
    ):
        FlashAttention()
