"""Static embeddings: a table of vectors, one per token, independent of context.

Sources: sentence-transformers' StaticEmbedding, and MinishLab's model2vec, whose tables have fewer vectors
than tokens, or token weights, in some releases.
"""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from farrank_rankers.errors import SourceError, WeightsError
from farrank_rankers.json_values import read_value


class StaticEmbedding(nn.Module):
    """Look tokens up. Shapes: (P, L) -> last_hidden_state (P, L, H)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        words: int = read_value(int, config.get("vocab_size"), "config.json: vocab_size", SourceError)
        width: int = read_value(int, config.get("hidden_size"), "config.json: hidden_size", SourceError)
        self.config = SimpleNamespace(**config, num_hidden_layers=0)
        self.embedding = nn.Embedding(words, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        """Shapes: (P, L) each -> last_hidden_state (P, L, H)."""
        return SimpleNamespace(last_hidden_state=self.embedding(input_ids))


def rename_static(tensors: Mapping[str, Tensor], source: Path) -> dict[str, Tensor]:
    """Make a table with a row per token from either package's files, multiplied by the token's weight.

    Shapes: embedding.weight (V, H); or embeddings (R, H), with mapping (V,) of rows and weights (V,).
    Raises: WeightsError naming the file and the tensor that is missing or does not fit.
    """
    if "embedding.weight" in tensors:
        return {"embedding.weight": tensors["embedding.weight"]}
    if "embeddings" not in tensors:
        raise WeightsError(f"{source} has neither the tensor embedding.weight nor embeddings")
    table = tensors["embeddings"].float()  # (R, H)
    if (rows := tensors.get("mapping")) is not None:
        if rows.dim() != 1 or rows.is_floating_point() or not _within(rows, len(table)):
            raise WeightsError(
                f"{source}: tensor mapping must number rows of embeddings, of which are {len(table)}"
            )
        table = table[rows.long()]
    if (weights := tensors.get("weights")) is not None:
        if weights.shape != table.shape[:1]:
            raise WeightsError(
                f"{source}: tensor weights has shape {tuple(weights.shape)}; "
                f"one for each of {len(table)} tokens is expected"
            )
        table = table * weights.to(torch.float32)[:, None]
    return {"embedding.weight": table.contiguous()}


def _within(rows: Tensor, count: int) -> bool:
    return not len(rows) or bool((rows >= 0).all() and (rows < count).all())
