"""Choose the weights of a ranker that learn, and their rates."""

from typing import Any

import torch
from torch import nn

from farrank_rankers.families.cedr import CedrKnrm
from farrank_rankers.ranker import Ranker
from farrank_training.batches import TrainingBatch
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.lora import LORA, add_lora

# KNRM's kernel of exact matches has width 0.001. AdamW at the papers' rate moves the width by a tenth of that
# in one step, and at width 0 the kernel's values are NaN.
NARROWEST_KERNEL = 5e-4


def choose_weights(ranker: Ranker, config: TrainingConfig, seed: int) -> None:
    """Choose the backbone's weights that learn: all, the last layers, or low-rank differences.

    A family's own weights and a published cross-encoder's head always learn.
    Raises: TrainingError if the backbone has fewer layers, or low-rank differences are not possible.
    """
    if config.trained_layers is None and config.lora_rank is None:
        return
    backbone: Any = ranker.encoder.backbone
    layers = layers_of(backbone)
    count = len(layers) if config.trained_layers is None else config.trained_layers
    if count > len(layers):
        raise TrainingError(
            f"trained_layers is {count}; "
            f"it must be at most the {len(layers)} layers of {ranker.spec.backbone}"
        )
    heads = ranker.encoder.head_weights()
    backbone.requires_grad_(False)
    for weight in heads:
        weight.requires_grad_(True)
    learning = layers[len(layers) - count :]
    if config.lora_rank is None:
        for layer in learning:
            layer.requires_grad_(True)
        return
    add_lora(backbone, list(learning), config.lora_rank, config.lora_alpha, seed)
    for weight in heads:
        weight.requires_grad_(True)


def layers_of(backbone: nn.Module) -> nn.ModuleList:
    """Find a transformer's layers, the lowest first.

    Raises: TrainingError if no module list is called "layer" or "layers", as in all known architectures.
    """
    found = [
        module
        for name, module in backbone.named_modules()
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] in ("layer", "layers")
    ]
    if not found:
        raise TrainingError(
            f"trained_layers and lora_rank must be none: {type(backbone).__name__} has no layers by that name"
        )
    return max(found, key=len)


def leave_out_unread(ranker: Ranker, batch: TrainingBatch) -> list[str]:
    """Freeze the weights that no score depends on, mostly a backbone's pooler, and return their names.

    Weight decay would move them, and processes that train together would wait for their gradients.
    """
    was_training = ranker.training
    # Dropout here would advance the generator that the run draws from later.
    ranker.eval()
    scores = ranker(batch["batch"], batch["counts"], batch["query"])
    named = {name: weight for name, weight in ranker.named_parameters() if weight.requires_grad}
    if not named:
        raise TrainingError(
            "trained_layers is 0; it must be at least 1: no other weight of the ranker learns"
        )
    gradients = torch.autograd.grad(scores.sum(), list(named.values()), allow_unused=True)
    ranker.train(was_training)
    unread = [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]
    for name in unread:
        named[name].requires_grad_(False)
    return unread


def optimizer_groups(ranker: Ranker, config: TrainingConfig) -> list[dict[str, Any]]:
    """Group the weights for AdamW by their rates: the backbone's, the low-rank differences', all others'."""
    of_lora = {id(weight) for name, weight in ranker.named_parameters() if LORA in name}
    groups = ranker.parameter_groups()
    backbone = [weight for weight in groups["backbone"] if id(weight) not in of_lora]
    differences = [weight for weight in groups["backbone"] if id(weight) in of_lora]
    rates = (
        (backbone, config.backbone_learning_rate),
        (differences, config.lora_learning_rate),
        (groups["other"], config.learning_rate),
    )
    return [{"params": weights, "lr": rate} for weights, rate in rates if weights]


def hold_limits(ranker: Ranker) -> None:
    """Clamp weights after a step to the range in which a family's arithmetic works."""
    if isinstance(ranker.aggregator, CedrKnrm):
        with torch.no_grad():
            ranker.aggregator.sigma.clamp_(min=NARROWEST_KERNEL)
