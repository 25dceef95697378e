"""A reader's files become a ranker."""

from typing import Any

import torch

from farrank_rankers.errors import SourceError
from farrank_rankers.files.model_files import ModelFiles
from farrank_rankers.files.transformers_weights import fill_backbone
from farrank_rankers.files.weights import FILE, fill, read_weights
from farrank_rankers.ranker import Ranker
from farrank_rankers.reader import Reader


def load_weights(reader: Reader, files: ModelFiles, dtype: torch.dtype | None) -> Ranker:
    """Build a ranker and fill in its weights; the caller's random state is left as it was.

    Raises: WeightsError if weights are damaged or do not fit.
    """
    ranker = build(reader, dict(files.config), seed=0)
    if files.kind == "artifact":
        fill(ranker, read_weights(files.folder), files.folder / FILE)
    else:
        fill_backbone(ranker.encoder.backbone, files.transformer)
    if dtype is not None:
        ranker.encoder.to(dtype)
    return ranker.eval()


def build(reader: Reader, config: dict[str, Any], seed: int) -> Ranker:
    """Build a ranker with random weights that depend on the seed alone.

    Raises: SourceError if transformers cannot build the backbone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return Ranker(reader, config)
        except (ValueError, TypeError, KeyError) as error:
            if isinstance(error, SourceError):
                raise
            raise SourceError(f"config.json of {reader.spec.backbone} cannot be built: {error}") from error
