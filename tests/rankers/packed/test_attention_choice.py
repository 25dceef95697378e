"""The kernels of a device, and their descriptions."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.packed import flex_attention as flex
from farrank_rankers.packed.attention_choice import FusedAttention, choose_attention
from farrank_rankers.packed.pattern import CAUSAL, EVERY_TOKEN, Heads, Pattern
from farrank_rankers.packed.plain_attention import plain_attention
from support.attention_heads import PATTERNS, RandomHeads

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class Noted:
    """A kernel that records its calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def __call__(self, heads: Heads, pattern: Pattern) -> Tensor:
        self._calls.append(self._name)
        return heads.query


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A GPU according to torch's functions. Nothing runs on it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    return monkeypatch


def test_a_cpu_is_served_plainly() -> None:
    chosen = choose_attention(CPU, torch.bfloat16)
    assert chosen == (plain_attention, "plain", "packing gains nothing without a GPU")


def test_full_precision_is_served_plainly(gpu: pytest.MonkeyPatch) -> None:
    chosen = choose_attention(CUDA, torch.float32)
    missing = "packing gains nothing in float32: kernels need 16 bits"
    assert chosen == (plain_attention, "plain", missing)


def test_torchs_own_where_flash_attn_is_not_installed(gpu: pytest.MonkeyPatch) -> None:
    chosen = choose_attention(CUDA, torch.bfloat16)
    assert isinstance(chosen.attention, FusedAttention)
    assert chosen[1:] == ("torch varlen and flex", "flash_attn is not installed")


def test_flash_attn_where_it_is(gpu: pytest.MonkeyPatch) -> None:
    module = type(sys)("flash_attn")
    module.flash_attn_varlen_func = None  # type: ignore[attr-defined]
    gpu.setitem(sys.modules, "flash_attn", module)
    gpu.setattr("farrank_rankers.packed.flash_kernels.version", lambda name: "2.8.3")
    assert choose_attention(CUDA, torch.float16)[1:] == ("flash_attn 2.8.3 and flex", "")


def test_a_gpu_that_is_too_old_is_named(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    named = r"^cuda:0 has compute capability 7\.5, flash kernels need 8\.0 or above: serve padded"
    with pytest.raises(AttentionAbsent, match=named):
        choose_attention(CUDA, torch.float16)


def test_a_torch_without_kernels_is_named(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    with pytest.raises(
        AttentionAbsent, match=r"^flash_attn is not installed, and torch .* was built without"
    ):
        choose_attention(CUDA, torch.float16)


@pytest.mark.parametrize("takes_slopes", [False, True])
def test_each_pattern_goes_to_the_fastest_kernel_that_serves_it(takes_slopes: bool) -> None:
    calls: list[str] = []
    fused = FusedAttention(Noted("flash", calls), takes_slopes)
    fused.__dict__["_flex"] = Noted("flex", calls)
    heads = RandomHeads.random((5, 20))
    for make in PATTERNS.values():
        heads.through(fused, make(heads))
    sloped = "flash" if takes_slopes else "flex"
    served = dict(zip(PATTERNS, calls, strict=True))
    assert served == {
        "every_token": "flash",
        "causal": "flash",
        "alibi": sloped,
        "causal_alibi": sloped,
        "window": "flex",
        "window_both_ends": "flex",
        "rescored": "flex",
    }


def test_places_in_inputs_of_other_lengths_go_to_flex() -> None:
    calls: list[str] = []
    fused = FusedAttention(Noted("flash", calls), takes_slopes=True)
    fused.__dict__["_flex"] = Noted("flex", calls)
    for seen in ((7, 3), (5, 20)):
        heads = RandomHeads.random((5, 20), seen)
        heads.through(fused, EVERY_TOKEN)
        heads.through(fused, CAUSAL)
    assert calls == ["flash", "flex", "flash", "flash"]


@pytest.mark.parametrize(
    ("compilers", "triton", "named"),
    [((), "re", "install gcc"), (("sh",), "no_such_package", "install triton")],
)
def test_attention_that_cannot_be_compiled_says_what_is_absent(
    monkeypatch: pytest.MonkeyPatch, compilers: tuple[str, ...], triton: str, named: str
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(flex, "COMPILERS", compilers)
    monkeypatch.setattr(flex, "TRITON", triton)
    heads = RandomHeads.random((3,), heads=2)
    fused = FusedAttention(Noted("flash", []), takes_slopes=False)
    slopes = Pattern(slopes=torch.ones(2))
    with pytest.raises(AttentionAbsent, match=f"{named}.*packing: padded"):
        fused(heads, slopes)


def test_nothing_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys, torch\n"
        "from farrank_rankers.packed.attention_choice import choose_attention\n"
        "choose_attention(torch.device('cpu'), torch.float32)\n"
        "print(*sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = ran.stdout.split()
    assert "farrank_rankers.packed.flash_kernels" in imported
    assert "torch._dynamo" not in imported
    assert "flash_attn" not in imported
    assert "farrank_rankers.packed.flex_attention" not in imported
