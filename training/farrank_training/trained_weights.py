"""Which weights of a ranker learn, and how fast."""

from typing import Any

import torch
from torch import nn

from farrank_rankers.families.cedr import CedrKnrm
from farrank_rankers.ranker import Ranker
from farrank_training.batches import TrainingBatch
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.lora import LORA, add_lora

# KNRM's kernel of exact matches is 0.001 wide. AdamW at the papers' rate moves it by a tenth of that in one
# step, and at 0 its values are no numbers any more.
NARROWEST_KERNEL = 5e-4


def choose_weights(ranker: Ranker, config: TrainingConfig, seed: int) -> None:
    """Let the weights learn that shall: all, or the last layers of the backbone, or differences of low rank.

    What the families put on top learns in any case, and so does a published cross-encoder's head.
    Raises: TrainingError if the backbone has fewer layers, or low rank is asked for and cannot be had.
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

    Raises: TrainingError if it has none by the names that all architectures give them.
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
    """Stop what no score depends on from learning, and name it: a backbone's pooler, for the most part.

    Weight decay would move it, and processes that train together would wait for its gradient.
    """
    was_training = ranker.training
    # Without dropout, which would draw numbers that a run draws later.
    ranker.eval()
    scores = ranker(batch["batch"], batch["counts"], batch["query"])
    named = {name: weight for name, weight in ranker.named_parameters() if weight.requires_grad}
    if not named:
        raise TrainingError(
            "trained_layers is 0; it must be more: the ranker has no other weight that learns"
        )
    gradients = torch.autograd.grad(scores.sum(), list(named.values()), allow_unused=True)
    ranker.train(was_training)
    unread = [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]
    for name in unread:
        named[name].requires_grad_(False)
    return unread


def optimizer_groups(ranker: Ranker, config: TrainingConfig) -> list[dict[str, Any]]:
    """Give AdamW the weights by their rates: the backbone's, the low-rank differences', all others'.

    Raises: TrainingError if nothing learns.
    """
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
    """Keep weights, after a step, where a family's arithmetic holds."""
    if isinstance(ranker.aggregator, CedrKnrm):
        with torch.no_grad():
            ranker.aggregator.sigma.clamp_(min=NARROWEST_KERNEL)
