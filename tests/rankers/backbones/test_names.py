"""The name tables at full size: every published tensor has a parameter, and every parameter a tensor."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from farrank_rankers.backbones.alibi_bert import HEAD_PREFIX, AlibiBert, build_alibi_bert, rename_published
from farrank_rankers.backbones.alibi_checkpoints import HEADS, PUBLISHED
from farrank_rankers.errors import WeightsError
from farrank_rankers.files.weights import fill


def built(config: dict[str, Any]) -> AlibiBert:
    with torch.device("meta"):
        return build_alibi_bert(config)


def read(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Fill a backbone as `farrank_rankers.files.weights` does."""
    model, source = build_alibi_bert(config).double(), Path("x")
    fill(model, rename_published(model, tensors, source), source, PUBLISHED[model.kind].name)


def full_size(published: Any) -> dict[str, Tensor]:
    encoder, others = published.shapes(published.config)
    return {name: torch.empty(shape, device="meta") for name, shape in (encoder | others).items()}


def test_every_published_tensor_is_placed_or_passed_over(published: Any) -> None:
    model = built(published.config)
    encoder, others = published.shapes(published.config)
    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert {PUBLISHED[model.kind].name(name): shape for name, shape in own.items()} == encoder
    assert all(name.removeprefix(HEAD_PREFIX).startswith(HEADS) for name in others)
    assert not any(name.removeprefix(HEAD_PREFIX).startswith(HEADS) for name in encoder)
    assert own.keys() == {name for name, _ in model.named_parameters()}
    assert rename_published(model, full_size(published)).keys() == own.keys()


def test_parameters_at_full_size(published: Any) -> None:
    """137 million each. Together with the skipped tensors they fill the files on the hub."""
    model = built(published.config)
    own = sum(parameter.numel() for parameter in model.parameters())
    assert own == pytest.approx(137e6, rel=0.02)
    _, others = published.shapes(published.config)
    others.pop("cls.predictions.decoder.weight", None)  # tied to the word embeddings, and saved once
    numbers = own + sum(math.prod(shape) for shape in others.values())
    assert numbers * published.bytes / 1e6 == pytest.approx(published.megabytes, abs=0.5)


def test_names_with_and_without_prefix(published: Any) -> None:
    model, tensors = built(published.config), full_size(published)
    expected = rename_published(model, tensors)
    bare = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    with_head = {name if name.startswith("cls.") else f"bert.{name}": tensor for name, tensor in bare.items()}
    for state in (bare, with_head):
        renamed = rename_published(model, state)
        assert renamed.keys() == expected.keys()
        assert all(renamed[name] is tensor for name, tensor in expected.items())


def test_damaged_checkpoints(published: Any) -> None:
    config = published.tiny()
    tensors = published.tensors(config)
    name = next(key for key in tensors if key.endswith("encoder.layer.1.mlp.wo.weight"))

    missing = {key: tensor for key, tensor in tensors.items() if key != name}
    with pytest.raises(WeightsError, match=rf"^x lacks the tensor {name} of shape \(24, 20\)$"):
        read(config, missing)

    turned = {**tensors, name: tensors[name].T}
    expected = rf"^x: tensor {name} has shape \(20, 24\); the model expects \(24, 20\)$"
    with pytest.raises(WeightsError, match=expected):
        read(config, turned)

    unknown = {**tensors, "encoder.layer.2.mlp.wo.weight": tensors[name]}
    with pytest.raises(WeightsError, match=r"has the tensor encoder\.layer\.2\.mlp\.wo\.weight, which"):
        read(config, unknown)

    ours = {**tensors, "layers.1.feed_forward.output.weight": tensors[name]}
    del ours[name]
    with pytest.raises(
        WeightsError, match=r"^x has the tensor layers\.1\.feed_forward\.output\.weight, which"
    ):
        read(config, ours)

    bare = name.removeprefix("bert.")
    twice = {**tensors, f"bert.{bare}": tensors[name], bare: tensors[name]}
    with pytest.raises(WeightsError, match=r"encoder\.layer\.1\.mlp\.wo\.weight twice"):
        read(config, twice)


def test_norms_of_queries_and_keys_are_not_dropped_in_silence(published: Any) -> None:
    """JinaBERT's later code has these tensors and computes something else."""
    config = published.tiny()
    tensors = published.tensors(config)
    tensors["encoder.layer.0.attention.self.layer_norm_q.weight"] = torch.ones(24)
    with pytest.raises(WeightsError, match=r"layer_norm_q\.weight"):
        read(config, tensors)
