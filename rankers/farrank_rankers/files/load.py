"""Load a ranker with the weights of its files, directly to their device and dtype."""

import torch

from farrank_rankers.errors import WeightsError, naming
from farrank_rankers.files.difference import load_difference
from farrank_rankers.files.model_files import ModelFiles
from farrank_rankers.files.weights import (
    FILE,
    build_empty,
    check_weights,
    fill,
    load_published,
    place,
    read_weights,
)
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader


def load_weights(
    reader: Reader, files: ModelFiles, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Ranker:
    """Build a ranker around the weights of its files, its encoder in `dtype`, its aggregator in fp32.

    The files are memory-mapped: each tensor goes directly to its device, in its dtype. The caller's random
    state does not change.
    Raises: WeightsError if weights are damaged or do not fit.
    """
    with naming(files.folder):
        ranker = _with_weights(reader, files)
        missing = [name for name, weight in ranker.named_parameters() if weight.is_meta]
        if missing:
            raise WeightsError(f"{files.folder} has no weights for {missing[0]}")
        ranker.eval()
        check_weights(ranker, files.folder if files.kind in ("artifact", "difference") else files.transformer)
    if dtype is not None:
        # Before conversion: the version is that of the files' content, independent of device and dtype.
        _ = ranker.weights_digest
    device = device or torch.device("cpu")
    # Copied even on a CPU: overwriting a file later must not change loaded weights.
    place(ranker.encoder, device, dtype or torch.float32, copy=True)
    place(ranker.aggregator, device, torch.float32, copy=True)
    return ranker


def _with_weights(reader: Reader, files: ModelFiles) -> Ranker:
    if files.kind == "difference":
        return load_difference(reader, files)
    if files.kind != "artifact":
        return load_published(reader, files)
    ranker = build_empty(reader, files)
    fill(ranker, read_weights(files.folder), files.folder / FILE)
    return ranker
