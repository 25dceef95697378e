"""Packed if it is faster, otherwise padded, with the reason in words."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_rankers.backbones import forms
from farrank_rankers.errors import AttentionAbsent
from farrank_rankers.files.open import open_ranker
from farrank_rankers.packed.attention_choice import AttentionChoice
from farrank_rankers.packed.packed_backbone import Compile, as_written, compiled
from farrank_rankers.packed.pattern import Attention
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.ranker import Ranker
from farrank_runtimes import torch_runtime as torch_opening
from farrank_runtimes.choose import open_ranker_runtime
from farrank_runtimes.runtime import Packing, PackingAbsent, Placement
from farrank_runtimes.torch_runtime import TorchRuntime, open_torch
from support.runtime_scores import QUERY, TEXTS, scores_through


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with a fused kernel that computes like the plain one."""

    def chosen(device: torch.device, dtype: torch.dtype) -> AttentionChoice:
        # A new object, because the original one is known as plain.
        return AttentionChoice(partial(plain_attention), "fused", "faster_one is not installed")

    monkeypatch.setattr(torch_opening, "choose_attention", chosen)


def cpu(packing: Packing) -> Placement:
    return Placement("cpu", 1, packing=packing)


@pytest.mark.parametrize(
    ("packing", "packed", "form"),
    [
        ("auto", False, "padded batches"),
        ("padded", False, "padded batches, as configured"),
        ("packed", True, "packed batches, plain attention (packing gains nothing without a GPU)"),
    ],
)
def test_a_cpu_packs_when_asked_to(
    tiny_rankers: dict[str, Path], packing: Packing, packed: bool, form: str
) -> None:
    wanted = [each.score for each in open_ranker(tiny_rankers["maxp"]).score(QUERY, TEXTS)]
    ranker = open_ranker(tiny_rankers["maxp"])
    runtime, told = open_torch(ranker, "fp32", cpu(packing))
    assert (runtime.capabilities().packed, told) == (packed, form)
    assert scores_through(runtime, ranker.reader) == pytest.approx(wanted, abs=1e-5)


def test_a_backbone_that_gains_is_packed_on_a_cpu(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gaining = replace(forms.forms_of("bert"), packs_unfused=True)
    monkeypatch.setattr(torch_opening, "forms_of", lambda architecture: gaining)
    ranker = open_ranker(tiny_rankers["maxp"])
    runtime, told = open_torch(ranker, "fp32", cpu("auto"))
    assert (runtime.capabilities().packed, told) == (True, "packed batches, plain attention")
    assert not open_torch(ranker, "fp32", cpu("padded"))[0].capabilities().packed


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize(("packing", "packed"), [("auto", True), ("packed", True), ("padded", False)])
def test_a_fused_kernel_packs_unless_configured_otherwise(
    tiny_rankers: dict[str, Path], packing: Packing, packed: bool
) -> None:
    runtime, form = open_torch(open_ranker(tiny_rankers["maxp"]), "fp32", cpu(packing))
    assert runtime.capabilities().packed == packed
    if packed:
        assert form == "packed batches, fused attention (faster_one is not installed)"


@pytest.mark.usefixtures("fused")
def test_a_backbone_without_a_packed_form_is_padded(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "forms_of", lambda architecture: forms.Forms())
    runtime, form = open_torch(open_ranker(tiny_rankers["maxp"]), "fp32", cpu("auto"))
    assert not runtime.capabilities().packed
    assert form == "padded batches (this backbone of type 'bert' reads only padded batches)"
    with pytest.raises(
        PackingAbsent, match=r"^packed batches are not available: this backbone of type 'bert'"
    ):
        open_torch(open_ranker(tiny_rankers["maxp"]), "fp32", cpu("packed"))


def test_a_device_without_attention_is_padded(
    tiny_rankers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(device: torch.device, dtype: torch.dtype) -> AttentionChoice:
        raise AttentionAbsent("this one is too old")

    monkeypatch.setattr(torch_opening, "choose_attention", none)
    runtime, form = open_torch(open_ranker(tiny_rankers["maxp"]), "fp32", cpu("auto"))
    assert (runtime.capabilities().packed, form) == (False, "padded batches (this one is too old)")
    with pytest.raises(PackingAbsent, match="too old"):
        open_torch(open_ranker(tiny_rankers["maxp"]), "fp32", cpu("packed"))


@pytest.mark.parametrize(("asked", "given"), [(False, as_written), (True, compiled)])
def test_layers_are_compiled_when_asked_for(
    tiny_rankers: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    asked: bool,
    given: Callable[..., object],
) -> None:
    seen: list[object] = []

    def opened(ranker: Ranker, *where: Any, attention: Attention | None, compile_by: Compile) -> TorchRuntime:
        seen.append(compile_by)
        return TorchRuntime(ranker, "fp32", "cpu", 1, attention)

    monkeypatch.setattr(torch_opening, "TorchRuntime", opened)
    placement = Placement("cpu", 1, packing="packed", compile=asked)
    open_torch(open_ranker(tiny_rankers["maxp"]), "fp32", placement)
    assert seen == [given]


def test_the_form_is_part_of_the_reason(tiny_rankers: dict[str, Path], tiny_exports: dict[str, Path]) -> None:
    served = open_ranker_runtime(str(tiny_rankers["maxp"]), {}, placement=cpu("auto"))
    assert served.reason == "torch fp32, the fastest that can serve this ranker here; padded batches"
    # Exports read padded batches, so packing requires torch.
    served = open_ranker_runtime(str(tiny_exports["maxp"]), {}, placement=cpu("packed"))
    assert served.runtime.capabilities().packed
    assert served.reason.startswith("torch fp32, as configured; packed batches, plain attention")


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_packed_batches_of_an_export_are_refused(tiny_exports: dict[str, Path], runtime: str) -> None:
    with pytest.raises(PackingAbsent, match=f"^only torch packs batches; {runtime} pads them"):
        open_ranker_runtime(str(tiny_exports["maxp"]), {}, runtime=runtime, placement=cpu("packed"))
