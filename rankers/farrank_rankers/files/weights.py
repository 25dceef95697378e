"""Weights from safetensors files, and only from those, copied into modules by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from farrank_rankers.errors import WeightsError

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read a folder's tensors, from one file or from the shards that an index names.

    Raises: WeightsError naming the file that is missing or damaged.
    """
    index, shards = folder / INDEX, [FILE]
    if not (folder / FILE).is_file() and index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise WeightsError(f"{index} cannot be read: {error!r}") from error
    tensors: dict[str, Tensor] = {}
    for path in (folder / Path(shard).name for shard in shards):
        if not path.is_file():
            pickled = ", ".join(sorted(item.name for item in folder.glob("*.bin")))
            hint = f"; {pickled} is not opened, for pickles can run code: convert it" if pickled else ""
            raise WeightsError(f"{path} is missing{hint}")
        try:
            tensors |= load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise WeightsError(f"{path} is damaged or no safetensors file: {error}") from error
    return tensors


def write_weights(module: nn.Module, folder: Path) -> None:
    """Write a module's tensors, each shared one once.

    Raises: WeightsError naming the file that cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _distinct(module).items()}
    path = folder / FILE
    try:
        # safetensors makes a file that only its owner may read. Python's has the umask's permissions.
        path.unlink(missing_ok=True)
        path.touch()
        permissions = path.stat().st_mode
        save_file(tensors, path)
        path.chmod(permissions)
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for a full disk
        raise WeightsError(f"{path} cannot be written: {error}") from error


def fill(
    module: nn.Module, tensors: Mapping[str, Tensor], source: Path, published: Callable[[str], str] = str
) -> None:
    """Put tensors into the module's of the same name, which must all be there, and nothing else.

    `published` gives the name that a tensor has in the source, where that is another.
    Raises: WeightsError naming `source`, the tensor and what was expected.
    """
    wanted = _distinct(module)
    unknown = sorted(tensors.keys() - module.state_dict().keys())
    if unknown:
        raise WeightsError(f"{source} has the tensor {unknown[0]}, which the model does not have")
    for name, target in wanted.items():
        if name not in tensors:
            raise WeightsError(f"{source} lacks the tensor {published(name)} of shape {tuple(target.shape)}")
        copy(published(name), tensors[name], target, source)


def copy(name: str, tensor: Tensor, target: Tensor, source: Path) -> None:
    """Copy one tensor; a target without memory becomes the tensor itself, wherever modules hold it.

    Raises: WeightsError naming `source`, the tensor and what was expected.
    """
    if tensor.shape != target.shape:
        raise WeightsError(
            f"{source}: tensor {name} has shape {tuple(tensor.shape)}; "
            f"the model expects {tuple(target.shape)}"
        )
    if tensor.is_floating_point() != target.is_floating_point():
        raise WeightsError(f"{source}: tensor {name} is {tensor.dtype}; the model expects {target.dtype}")
    if target.is_meta:
        given = nn.Parameter(tensor, requires_grad=target.requires_grad)
        torch.utils.swap_tensors(target, given)  # type: ignore[no-untyped-call]
        return
    with torch.no_grad():
        target.copy_(tensor)


def _distinct(module: nn.Module) -> dict[str, Tensor]:
    """Name a module's tensors, one name for those that are the same (tied embeddings)."""
    seen: dict[int, str] = {}
    named = module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in named.items() if seen.setdefault(id(tensor), name) == name}


def fill_backbone(backbone: nn.Module, folder: Path, *, new_head: bool = False) -> None:
    """Copy a checkpoint into a transformers model; with `new_head`, what no base model has may be missing.

    A base model reads the checkpoint of a model with a head and the other way round; old names of LayerNorm's
    tensors are understood. Tensors that the model has no use for (another task's head) are passed over.
    Raises: WeightsError naming the file, the tensor and what was expected.
    """
    tensors = {}
    for name, tensor in read_weights(folder).items():  # names of TensorFlow's become torch's
        modern = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
            "LayerNorm.beta", "LayerNorm.bias"
        )
        tensors[modern] = tensor
    prefix = f"{getattr(backbone, 'base_model_prefix', '')}."
    loaded: set[int] = set()
    missing: dict[str, Tensor] = {}
    for name, target in backbone.state_dict(keep_vars=True).items():
        names = (name, prefix + name, name.removeprefix(prefix))
        found = next((tensors[each] for each in names if each in tensors), None)
        if found is not None:
            copy(name, found, target, folder / FILE)
            loaded.add(id(target))
        else:
            missing[name] = target
    for name, target in missing.items():
        is_head = not name.startswith(prefix) or name.startswith(f"{prefix}pooler.")
        if id(target) not in loaded and not (new_head and loaded and is_head):
            raise WeightsError(f"{folder / FILE} lacks the tensor {name} of shape {tuple(target.shape)}")
