"""A trained ranker kept as what it differs in from the published model that it was trained from.

The folder has ranker.json, `difference.json` with the model's source as `base`, and
`difference.safetensors`. A matrix of the base that changed by little rank is kept as two factors, NAME.left
and NAME.right; what changed otherwise, and what the base does not have, is kept whole under its name.
Tokenizer and configuration are the base's.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from farrank_rankers.errors import SourceError, WeightsError
from farrank_rankers.files.model_files import DIFFERENCE_FILE, SPEC_FILE, ModelFiles, locate
from farrank_rankers.files.weights import DIFFERENCE_WEIGHTS, LEFT, RIGHT, distinct, load_base, write_weights
from farrank_rankers.ranker import Ranker
from farrank_rankers.tokenizer import TokenizerFiles

# Singular values below this share of the largest are rounding, as low-rank training leaves it in fp32.
_NOTHING = 1e-4


def save_difference(ranker: Ranker, folder: Path, base: str) -> None:
    """Write a ranker as its difference from the model `base`, in fp16.

    Opened again it is another version with almost the same scores: fp16 keeps 11 bits of each number.
    Raises: SourceError if tokenizer or configuration are not the base's; WeightsError if fp16 cannot hold a
    weight, or a file cannot be written.
    """
    files = ModelFiles.find(locate(base))
    if dict(files.config) != dict(ranker.config):
        raise SourceError(f"{base} has another configuration than the ranker: no difference can be kept")
    if TokenizerFiles.read(files.transformer) != ranker.reader.tokenizer.files:
        raise SourceError(f"{base} has another tokenizer than the ranker: no difference can be kept")
    published = distinct(load_base(ranker.reader, files))
    kept: dict[str, Tensor] = {}
    for name, tensor in distinct(ranker).items():
        kept |= _kept(name, tensor.detach().cpu(), published.get(name))
    for name, tensor in kept.items():
        if not bool(tensor.isfinite().all()):
            raise WeightsError(f"{name} has a weight that fp16 cannot hold")
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(kept, folder / DIFFERENCE_WEIGHTS)
    (folder / DIFFERENCE_FILE).write_text(json.dumps({"base": base}) + "\n", encoding="utf-8")
    # Last, so that a folder whose writing was cut short is not taken for a ranker.
    (folder / SPEC_FILE).write_text(ranker.spec.to_json(), encoding="utf-8")


def _kept(name: str, tensor: Tensor, published: Tensor | None) -> dict[str, Tensor]:
    """Choose the smallest way to keep a tensor: nothing, two factors, or all of it."""
    if published is None or published.is_meta or not tensor.is_floating_point():
        return {name: tensor.half() if tensor.is_floating_point() else tensor}
    if torch.equal(tensor, published):
        return {}
    if tensor.ndim == 2:
        left, values, right = torch.linalg.svd(tensor.double() - published.double(), full_matrices=False)
        rank = int((values > _NOTHING * values[0]).sum())
        if rank * sum(tensor.shape) < tensor.numel():
            root = values[:rank].sqrt()
            return {
                name + LEFT: (left[:, :rank] * root).half().contiguous(),
                name + RIGHT: (root[:, None] * right[:rank]).half().contiguous(),
            }
    return {name: tensor.half()}
