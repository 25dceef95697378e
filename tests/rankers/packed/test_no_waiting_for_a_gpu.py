"""From upload to features, no operation makes the host wait for a GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from farrank_rankers.backbones import longformer
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.packed.plain_attention import plain_attention
from farrank_rankers.packed.stream import uploaded
from farrank_rankers.packed_encoder import PackedEncoder
from support.architectures import ARCHITECTURES
from support.packed_backbones import stream_of
from support.ranker_inputs import inputs_of

# Operations that read a tensor's value, or whose result's size depends on values, wait on CUDA. So do those
# that convert Python numbers to a tensor there, by a copy from memory that is not pinned.
WAITING = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::equal",
        "aten::is_nonzero",
        "aten::item",
        "aten::lift_fresh",
        "aten::masked_select",
        "aten::nonzero",
        "aten::unique_consecutive",
        "aten::unique_dim",
        "aten::_unique2",
    }
)
READING = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__})


class NoWaitingOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operations that make the host wait."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        assert func._schema.name not in WAITING, f"{func} would wait for the device"
        if func._schema.name == "aten::repeat_interleave" and not any(isinstance(each, int) for each in args):
            assert given.get("output_size") is not None, "the device alone knows how many there will be"
        if func._schema.name in ("aten::index", "aten::index_put", "aten::index_put_"):
            flags = [each for each in args[1] if each is not None and each.dtype in (torch.bool, torch.uint8)]
            assert not flags, "a mask as an index is a search for what it marks"
        return func(*args, **given)


class NoReading(TorchFunctionMode):
    """Refuses reads of a CPU tensor's memory without an operation."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        assert func not in READING, f"{func} reads values on the host"
        return func(*args, **(kwargs or {}))


def unwatched(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Upload from pinned memory. Nothing waits for it, although torch calls it like other copies."""
    with _disable_current_modes():
        return uploaded(values, device)


@contextmanager
def no_waiting() -> Iterator[None]:
    operations: Callable[[], NoWaitingOperations] = NoWaitingOperations
    with pytest.MonkeyPatch.context() as changed, operations(), NoReading():
        changed.setattr(longformer, "uploaded", unwatched)
        yield


@pytest.mark.parametrize(
    "looks",
    [
        lambda values: values[0].item(),
        lambda values: values.tolist(),
        lambda values: bool(values[0] > 0),
        lambda values: values[values > 0],
        lambda values: values.nonzero(),
        lambda values: values.repeat_interleave(values.abs().long()),
        lambda values: torch.tensor([1, 2], device=values.device),
        lambda values: values.unique(),
    ],
)
def test_waiting_operations_are_found(looks: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(AssertionError), no_waiting():
        looks(torch.ones(3))


# Only a pair plan has padding inside a query within chunks' inputs.
CASES = [(name, None) for name in FAMILIES] + [
    (name, 12) for name in FAMILIES if FAMILIES[name].plan == "pair"
]


@pytest.mark.parametrize(("family", "pad_query_to"), CASES)
def test_no_family_waits(
    make_model: Callable[..., Path],
    tiny_options: dict[str, dict[str, Any]],
    family: str,
    pad_query_to: int | None,
) -> None:
    check(family, make_model("bert"), tiny_options.get(family), pad_query_to)


@pytest.mark.parametrize("backbone", ARCHITECTURES)
def test_no_backbone_waits(make_backbone: Callable[..., Path], backbone: str) -> None:
    check("cedr-knrm", make_backbone(backbone), None, None)


@pytest.mark.parametrize("model", [name for name in ARCHITECTURES if name not in ("jina", "mosaic")])
def test_no_classifier_waits(make_model: Callable[..., Path], model: str) -> None:
    check("cross-encoder", make_model(model), None, None)


def check(family: str, folder: Path, options: dict[str, Any] | None, pad_query_to: int | None) -> None:
    ranker = new_ranker(
        family,
        folder,
        seed=3,
        options=options,
        pretrained=False,
        max_query_tokens=12,
        pad_query_to=pad_query_to,
        window=16,
        max_document_tokens=64,
    ).eval()
    encoder = PackedEncoder(ranker.encoder, plain_attention)
    stream = stream_of(inputs_of(ranker))
    with torch.inference_mode(), no_waiting():
        features = encoder.encode(stream)
    assert torch.isfinite(features.vectors).all()
