"""Weights for a folder that has only a configuration and a tokenizer."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from farrank_rankers.files.untrained import new_ranker


def write_random_weights(folder: Path) -> None:
    """Write random weights of the backbone into its folder, in transformers' names."""
    backbone = new_ranker("biencoder", folder, seed=3, pretrained=False).encoder.backbone
    save_file(backbone.state_dict(), folder / "model.safetensors", {"format": "pt"})
