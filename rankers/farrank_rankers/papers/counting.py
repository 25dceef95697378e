"""How many parameters a model has, counted without holding one of them."""

import torch
from torch import nn

from farrank_rankers.families.registry import AGGREGATORS, ENCODERS
from farrank_rankers.papers.models import PaperModel


def on_meta(model: PaperModel) -> nn.ModuleDict:
    """Build encoder and aggregator at full size on torch's meta device: shapes without memory."""
    family = model.spec.family
    with torch.device("meta"):
        return nn.ModuleDict(
            {
                "encoder": ENCODERS[family](model.spec, model.config),
                "aggregator": AGGREGATORS[family](model.spec, model.config),
            }
        )


def count_parameters(module: nn.Module) -> int:
    """Count what training may change, each shared parameter once."""
    return sum(parameter.numel() for parameter in module.parameters())
