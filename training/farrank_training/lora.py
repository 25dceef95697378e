"""Low-rank differences of a backbone's layers, learned in place of its weights and merged at the end.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022; peft implements it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from farrank_training.errors import TrainingError

# Part of the name of every parameter that peft adds.
LORA = ".lora_"


def add_lora(backbone: nn.Module, layers: Sequence[nn.Module], rank: int, alpha: int, seed: int) -> None:
    """Add a difference of this rank, initially 0, to every linear map of these layers of the backbone.

    All other weights of the backbone stop learning.
    Raises: TrainingError if peft is not installed, or the layers have no linear map.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        raise TrainingError("lora_rank needs the lora extra: pip install 'farrank[lora]'") from error
    inside = {id(module) for layer in layers for module in layer.modules()}
    linear = [
        name
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and id(module) in inside
    ]
    if not linear:
        raise TrainingError(f"lora_rank is {rank}; it must be none: the layers that learn have no linear map")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(
            LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=linear), backbone
        )


def merge_lora(backbone: nn.Module) -> None:
    """Merge the differences into the weights, and restore the backbone's modules."""
    from peft.tuners.lora import LoraLayer

    for name, module in list(backbone.named_modules()):
        if not isinstance(module, LoraLayer):
            continue
        merged: Any = module
        merged.merge()
        parent, _, attribute = name.rpartition(".")
        setattr(backbone.get_submodule(parent), attribute, merged.get_base_layer())
