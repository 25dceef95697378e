"""Published checkpoints of this package's backbones, their tensors renamed and checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farrank_rankers.backbones.alibi_checkpoints import build_backbone, ignored_names, parameter_names
from farrank_rankers.errors import WeightsError

HEAD_PREFIX = "bert."  # stands before the encoder's names where a model with a head was saved


def rename_published(
    config: Mapping[str, Any], state: Mapping[str, Tensor], source: Path | str = "the checkpoint"
) -> dict[str, Tensor]:
    """Give a published checkpoint's tensors the names of the backbone that `build_backbone(config)` builds.

    Saved with a head or without, the names may have "bert." before them or not. Tensors are not copied.
    Raises: WeightsError naming `source`, the tensor, and what was expected;
    SourceError if the config asks for no backbone of this package.
    """
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in build_backbone(config).state_dict().items()}
    own = {_bare(published): name for published, name in parameter_names(config).items()}
    ignored = {_bare(name) for name in ignored_names(config)}
    renamed: dict[str, Tensor] = {}
    for published, tensor in state.items():
        bare = _bare(published)
        if bare in ignored:
            continue
        if bare not in own:
            raise WeightsError(f"{source} has the tensor {published}, which the model does not have")
        name = own[bare]
        if name in renamed:
            raise WeightsError(
                f"{source} has the tensor {bare} twice, with and without {HEAD_PREFIX!r} before it"
            )
        if tensor.shape != shapes[name]:
            raise WeightsError(
                f"{source}: tensor {published} has shape {tuple(tensor.shape)}; "
                f"the model expects {tuple(shapes[name])}"
            )
        renamed[name] = tensor
    for published, name in parameter_names(config).items():
        if name not in renamed:
            raise WeightsError(f"{source} lacks the tensor {published} of shape {tuple(shapes[name])}")
    return renamed


def _bare(published: str) -> str:
    return published.removeprefix(HEAD_PREFIX)
