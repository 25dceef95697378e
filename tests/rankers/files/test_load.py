"""Weights go from their files to their modules complete and once, with the values that modules compute."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.profiler import ProfilerActivity, profile

from farrank_rankers.errors import WeightsError
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.files.untrained import new_ranker
from farrank_rankers.files.weights import fill, place, without_weights
from farrank_rankers.ranker import Ranker
from support.architectures import ARCHITECTURES


def tensors_of(ranker: Ranker) -> dict[str, torch.Tensor]:
    """Return the weights and the values that modules compute themselves."""
    return {**dict(ranker.named_parameters()), **dict(ranker.named_buffers())}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_ranker_is_opened_as_it_was_built(
    make_backbone: Callable[..., Path], tmp_path: Path, architecture: str
) -> None:
    built = new_ranker("maxp", make_backbone(architecture), seed=1, pretrained=False, max_query_tokens=12)
    save_ranker(built, tmp_path)
    opened, wanted = tensors_of(open_ranker(tmp_path)), tensors_of(built)
    assert opened.keys() == wanted.keys()
    for name, tensor in opened.items():
        assert (tensor.dtype, tensor.device.type) == (wanted[name].dtype, "cpu"), name
        assert torch.equal(tensor, wanted[name]), name


def test_in_half_precision_rotary_frequencies_stay_whole(
    make_backbone: Callable[..., Path], tmp_path: Path
) -> None:
    built = new_ranker("maxp", make_backbone("llama"), seed=1, pretrained=False, max_query_tokens=12)
    save_ranker(built, tmp_path)
    opened = open_ranker(tmp_path, dtype=torch.bfloat16)
    assert {weight.dtype for weight in opened.encoder.parameters()} == {torch.bfloat16}
    name = "encoder.backbone.rotary_emb.inv_freq"
    assert torch.equal(tensors_of(opened)[name], tensors_of(built)[name])
    assert opened.version == built.version


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opening_holds_the_weights_once(
    make_backbone: Callable[..., Path], tmp_path: Path, dtype: torch.dtype
) -> None:
    wide = make_backbone("bert", hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
    save_ranker(new_ranker("maxp", wide, seed=1, pretrained=False, max_query_tokens=12), tmp_path)
    open_ranker(tmp_path, dtype=dtype)  # memory that libraries take at their first use does not count
    gc.collect()  # otherwise memory of earlier tests that is freed meanwhile would count as less
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        ranker = open_ranker(tmp_path, dtype=dtype)
    sizes = [weight.nbytes for weight in ranker.parameters()]
    largest = max(weight.numel() for weight in ranker.parameters()) * 4
    # Mapping the file is reported as an allocation, too, but its pages are the file's.
    mapped = (tmp_path / "model.safetensors").stat().st_size
    held = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]" and abs(event.nbytes()) != mapped:
            held += event.nbytes()
            peak = max(peak, held)
    # One more tensor: a module creates its parameters before they are replaced, and the version hashes one
    # after the other.
    assert sum(sizes) <= peak <= sum(sizes) + 2 * largest + 2**16


def test_a_file_that_changes_does_not_change_what_is_loaded(
    make_backbone: Callable[..., Path], tmp_path: Path
) -> None:
    save_ranker(
        new_ranker("maxp", make_backbone("bert"), seed=1, pretrained=False, max_query_tokens=12), tmp_path
    )
    ranker = open_ranker(tmp_path)
    kept = {name: tensor.clone() for name, tensor in tensors_of(ranker).items()}
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in tensors_of(ranker).items())


def test_weights_saved_in_half_precision_open_in_fp32(
    make_backbone: Callable[..., Path], tmp_path: Path
) -> None:
    save_ranker(
        new_ranker("maxp", make_backbone("bert"), seed=1, pretrained=False, max_query_tokens=12), tmp_path
    )
    path = tmp_path / "model.safetensors"
    halves = {name: tensor.half() for name, tensor in load_file(path).items()}
    save_file(halves, path)
    ranker = open_ranker(tmp_path)
    assert {weight.dtype for weight in ranker.parameters()} == {torch.float32}
    assert all(torch.equal(tensor, halves[name].float()) for name, tensor in ranker.state_dict().items())
    assert open_ranker(tmp_path, dtype=torch.float16).version == ranker.version


def test_weights_that_no_file_holds_are_named(make_backbone: Callable[..., Path], tmp_path: Path) -> None:
    ranker = new_ranker("maxp", make_backbone("bert"), pretrained=False, max_query_tokens=12)
    save_ranker(ranker, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["aggregator.head.linear.bias"]
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=r"aggregator\.head\.linear\.bias"):
        open_ranker(tmp_path)


def test_opened_weights_can_be_trained_on(make_backbone: Callable[..., Path], tmp_path: Path) -> None:
    save_ranker(new_ranker("maxp", make_backbone("bert"), pretrained=False, max_query_tokens=12), tmp_path)
    ranker = open_ranker(tmp_path)
    ids = torch.ones(1, 4, dtype=torch.long)
    ranker.encoder(ids, ids, torch.zeros_like(ids)).vectors.sum().backward()
    assert all(weight.requires_grad for weight in ranker.parameters())
    assert any(weight.grad is not None for weight in ranker.encoder.parameters())


def test_modules_of_other_threads_keep_their_weights() -> None:
    made: list[nn.Linear] = []
    with without_weights():
        own = nn.Linear(2, 3)
        other = threading.Thread(target=lambda: made.append(nn.Linear(2, 3)))
        other.start()
        other.join()
    assert own.weight.is_meta
    assert not made[0].weight.is_meta
    assert not nn.Linear(2, 3).weight.is_meta


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.out = nn.Linear(4, 5, bias=False)
            self.out.weight = self.table.weight

    with without_weights():
        tied = Tied()
    assert tied.out.weight is tied.table.weight
    wanted = torch.randn(5, 4)
    fill(tied, {"table.weight": wanted}, Path("a file"))
    place(tied, torch.device("cpu"), torch.bfloat16)
    assert tied.out.weight is tied.table.weight
    assert torch.equal(tied.out.weight, wanted.bfloat16())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_land_on_the_device_asked_for(
    make_backbone: Callable[..., Path], tmp_path: Path, architecture: str
) -> None:
    built = new_ranker("maxp", make_backbone(architecture), seed=1, pretrained=False, max_query_tokens=12)
    save_ranker(built, tmp_path)
    opened = open_ranker(tmp_path, device=torch.device("cuda:0"), dtype=torch.bfloat16)
    wanted = tensors_of(built)
    for name, tensor in tensors_of(opened).items():
        assert tensor.device == torch.device("cuda:0"), name
        assert torch.equal(tensor.cpu(), wanted[name].to(tensor.dtype)), name
    assert opened.version == built.version
