"""Checkpoints written by transformers, whose names are not always those of the model that reads them."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from farrank_rankers.errors import WeightsError
from farrank_rankers.files.weights import FILE, copy, read_weights


def fill_backbone(backbone: nn.Module, folder: Path, *, new_head: bool = False) -> None:
    """Copy a checkpoint into a transformers model; with `new_head`, what no base model has may be missing.

    A base model reads the checkpoint of a model with a head and the other way round; old names of LayerNorm's
    tensors are understood. Tensors that the model has no use for (another task's head) are passed over.
    Raises: WeightsError naming the file, the tensor and what was expected.
    """
    tensors = {_modern(name): tensor for name, tensor in read_weights(folder).items()}
    prefix = f"{getattr(backbone, 'base_model_prefix', '')}."
    loaded: set[int] = set()
    missing: dict[str, Tensor] = {}
    for name, target in backbone.state_dict(keep_vars=True).items():
        found = _find(name, tensors, prefix)
        if found is not None:
            copy(name, found, target, folder / FILE)
            loaded.add(id(target))
        else:
            missing[name] = target
    for name, target in missing.items():
        is_head = not name.startswith(prefix) or name.startswith(f"{prefix}pooler.")
        if id(target) not in loaded and not (new_head and loaded and is_head):
            raise WeightsError(f"{folder / FILE} lacks the tensor {name} of shape {tuple(target.shape)}")


def _modern(name: str) -> str:
    """Translate the names that checkpoints converted from TensorFlow still carry."""
    for old, new in ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _find(name: str, tensors: Mapping[str, Tensor], prefix: str) -> Tensor | None:
    for candidate in (name, prefix + name, name.removeprefix(prefix)):
        if candidate in tensors:
            return tensors[candidate]
    return None
