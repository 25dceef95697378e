"""A trained ranker stored as its difference from the model that it was trained from.

The folder has ranker.json, `difference.json` with the model's source as `base`, and
`difference.safetensors`, whose `sha256` is in difference.json. The base is a published model, or another
difference, whose backbone is used: rankers that share a trained encoder store it once. Tokenizer and
configuration are the base's. Only tensors that differ are stored, each in the smallest of these forms:

- a matrix with a change of low rank as two fp16 factors, NAME.left and NAME.right;
- a large matrix that the base does not have as int8, NAME.rows, with a scale for each row, NAME.scales;
- any other tensor whole, in fp16.
"""

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor

from farrank_rankers.errors import SourceError, WeightsError
from farrank_rankers.files.model_files import DIFFERENCE_FILE, SPEC_FILE, ModelFiles, locate
from farrank_rankers.files.weights import copy, distinct, load_published, read_tensors, reading, write_weights
from farrank_rankers.json_values import read_json
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader
from farrank_rankers.tokenizer import TokenizerFiles

WEIGHTS = "difference.safetensors"
_LEFT, _RIGHT, _ROWS, _SCALES = _PARTS = (".left", ".right", ".rows", ".scales")
_OTHER = {_LEFT: _RIGHT, _RIGHT: _LEFT, _ROWS: _SCALES, _SCALES: _ROWS}

# Singular values below this share of the largest are rounding errors of low-rank training in fp32.
_NOTHING = 1e-4
# A matrix of fewer values gains little from int8.
_LARGE = 2**16
_BACKBONE = "encoder.backbone."


def load_difference(reader: Reader, files: ModelFiles) -> Ranker:
    """Build a ranker from its base's weights with its folder's changes; weights in neither stay empty.

    Raises: WeightsError naming the file, the tensor and what was expected.
    """
    ranker = load_base(reader, files.base or files)
    _change(ranker, files.folder, prefix="")
    return ranker


def load_base(reader: Reader, files: ModelFiles) -> Ranker:
    """Build a ranker around the backbone of its base, published or a difference.

    Raises: WeightsError naming the file, the tensor and what was expected.
    """
    if files.base is None or files.is_adapted:
        return load_published(reader, files)
    ranker = load_base(reader, files.base)
    _change(ranker, files.folder, prefix=_BACKBONE)
    return ranker


def save_difference(ranker: Ranker, folder: Path, base: str) -> None:
    """Write a ranker as its difference from the model `base`, in fp16 and int8.

    The reopened ranker has another version and almost the same scores: fp16 keeps 11 bits of each number,
    int8 is within 1/254 of the largest number in the row.
    Raises: SourceError if tokenizer or configuration are not the base's; WeightsError if fp16 cannot hold a
    weight, or a file cannot be written.
    """
    files = ModelFiles.find(locate(base))
    if dict(files.config) != dict(ranker.backbone_config):
        raise SourceError(f"{base} has another configuration than the ranker: no difference can be stored")
    if TokenizerFiles.read(files.tokenizer) != ranker.reader.tokenizer.files:
        raise SourceError(f"{base} has another tokenizer than the ranker: no difference can be stored")
    of_base = distinct(load_base(ranker.reader, files))
    kept: dict[str, Tensor] = {}
    for name, tensor in distinct(ranker).items():
        kept |= _kept(name, tensor.detach().cpu(), of_base.get(name))
    for name, tensor in kept.items():
        if not bool(tensor.isfinite().all()):
            raise WeightsError(f"{name} has a weight that fp16 cannot hold")
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(kept, folder / WEIGHTS)
    said = {"base": base, "sha256": _sha256(folder / WEIGHTS)}
    (folder / DIFFERENCE_FILE).write_text(json.dumps(said) + "\n", encoding="utf-8")
    # Last, so that a folder whose writing was interrupted is not taken for a ranker.
    (folder / SPEC_FILE).write_text(ranker.spec.to_json(), encoding="utf-8")


def _kept(name: str, tensor: Tensor, of_base: Tensor | None) -> dict[str, Tensor]:
    """Choose the smallest form of a tensor: nothing, two factors, rows of int8, or all of it."""
    if not tensor.is_floating_point():
        return {name: tensor}
    if of_base is None or of_base.is_meta:
        return (
            _quantized(name, tensor)
            if tensor.ndim == 2 and tensor.numel() >= _LARGE
            else {name: tensor.half()}
        )
    if torch.equal(tensor, of_base):
        return {}
    if tensor.ndim == 2:
        left, values, right = torch.linalg.svd(tensor.double() - of_base.double(), full_matrices=False)
        rank = int((values > _NOTHING * values[0]).sum())
        if rank * sum(tensor.shape) < tensor.numel():
            root = values[:rank].sqrt()
            return {
                name + _LEFT: (left[:, :rank] * root).half().contiguous(),
                name + _RIGHT: (root[:, None] * right[:rank]).half().contiguous(),
            }
    return {name: tensor.half()}


def _quantized(name: str, matrix: Tensor) -> dict[str, Tensor]:
    """Round each row to 255 steps, from −127 to 127, whose size depends on the row."""
    scales = matrix.abs().amax(dim=1) / 127  # (R,)
    # A row of zeros needs a step, too.
    steps = (matrix / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
    return {name + _ROWS: steps.to(torch.int8), name + _SCALES: scales}


def _change(ranker: Ranker, folder: Path, prefix: str) -> None:
    """Change weights whose names have this prefix to those of a folder.

    Raises: WeightsError naming the file, the tensor and what was expected.
    """
    path = folder / WEIGHTS
    # Older differences have none.
    said = read_json(folder / DIFFERENCE_FILE).get("sha256")
    if said is not None and said != (found := _sha256(path)):
        raise WeightsError(f"{path} is damaged: its SHA-256 is {found}, not {said} as {DIFFERENCE_FILE} says")
    kept = {name: each for name, each in read_tensors(path).items() if name.startswith(prefix)}
    targets = distinct(ranker)
    for name in sorted(kept):
        part = next((part for part in _PARTS if name.endswith(part)), "")
        base = name.removesuffix(part)
        if base not in targets:
            raise WeightsError(f"{path} has the tensor {name}, which the model does not have")
        target = targets[base]
        if part and base + _OTHER[part] not in kept:
            raise WeightsError(f"{path}: {name} has no other part, {base}{_OTHER[part]}")
        if not part:
            tensor = kept[name]
            # Not in place: the base's memory is that of its file.
            _replace(name, tensor.float() if tensor.is_floating_point() else tensor, target, path)
        elif part == _LEFT:
            _replace(base, _added(base, kept[name], kept[base + _RIGHT], target, path), target, path)
        elif part == _ROWS:
            _replace(base, _scaled(base, kept[name], kept[base + _SCALES], path), target, path)


def _sha256(path: Path) -> str:
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _added(name: str, left: Tensor, right: Tensor, target: Tensor, path: Path) -> Tensor:
    if target.is_meta:
        raise WeightsError(f"{path}: {name}{_LEFT} has no matrix to add it to")
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise WeightsError(f"{path}: {name}{_LEFT} and {name}{_RIGHT} are not two factors of a matrix")
    # In fp64 the product of fp16 factors is exact, so that every machine gets the same version.
    change = left.double() @ right.double()
    of_base = target.detach().double()
    # Another shape is refused on assignment.
    return (of_base + change if change.shape == of_base.shape else change).float()


def _scaled(name: str, rows: Tensor, scales: Tensor, path: Path) -> Tensor:
    if rows.dtype != torch.int8 or rows.ndim != 2 or scales.shape != rows.shape[:1]:
        raise WeightsError(f"{path}: {name}{_ROWS} and {name}{_SCALES} are not rows of int8 and their scales")
    return rows.float() * scales.float()[:, None]


def _replace(name: str, tensor: Tensor, target: Tensor, source: Path) -> None:
    if not target.is_meta and tensor.shape == target.shape:
        target.data = tensor
    else:
        copy(name, tensor, target, source)
