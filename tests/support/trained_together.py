"""A script for torchrun: processes that take a step together, and then make a whole run.

`torchrun … trained_together.py RANKER MULTI_VECTOR FOLDER` trains from the artifact RANKER; the first process
writes the step's gradients to FOLDER/gradients.safetensors, and two runs to FOLDER/run and FOLDER/late, which
the second process begins a second later. A step of the artifact MULTI_VECTOR with negatives of the batch
leaves FOLDER/contrastive.safetensors.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import TrainerCallback

from farrank_rankers.files.open import open_ranker
from farrank_training.configuration import TrainingConfig
from farrank_training.ranking_trainer import RankingTrainer
from farrank_training.training_run import train
from support.training_groups import Groups, triples, validation, without_dropout

STEP = TrainingConfig(accumulation=4, checkpoint_every=1000)
# Batches of three groups for each of two processes. The third one has two groups, and the fourth has none.
UNEVEN = 8
CONTRASTIVE = TrainingConfig(loss="contrastive", batch_size=3, accumulation=4, checkpoint_every=1000)
RUN = TrainingConfig(
    accumulation=4, batch_size=2, epochs=2, validate_every=1, learning_rate=1e-2, backbone_learning_rate=1e-3
)


class Gradients(TrainerCallback):  # type: ignore[misc]  # untyped
    """Keeps the gradients of the latest step."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, *_: Any, **objects: Any) -> None:
        named = objects["model"].named_parameters()
        self.found = {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


def step(
    artifact: Path, folder: Path, config: TrainingConfig = STEP, groups: int = 4
) -> dict[str, torch.Tensor]:
    """Make one step of all groups. Returns its gradients."""
    seen = Gradients()
    ranker = without_dropout(open_ranker(artifact))
    RankingTrainer(ranker, Groups(triples(groups)), config, folder, cpu=True, callbacks=[seen]).train_on()
    return seen.found


def run(artifact: Path, folder: Path) -> None:
    """Make a whole run."""
    ranker = without_dropout(open_ranker(artifact))
    train(ranker, Groups(triples(8)), RUN, folder, validation=validation(3), cpu=True)


def wait_a_little_for(path: Path) -> None:
    """Wait until another process has gone ahead, or for a limited time."""
    for _ in range(20):
        if not path.exists():
            time.sleep(0.05)


if __name__ == "__main__":
    torch.set_num_threads(1)
    artifact, multi_vector, folder = map(Path, sys.argv[1:])
    gradients = step(artifact, folder / "step")
    contrastive = step(multi_vector, folder / "contrastive", CONTRASTIVE, UNEVEN)
    if torch.distributed.get_rank() == 0:
        save_file(gradients, folder / "gradients.safetensors")
        save_file(contrastive, folder / "contrastive.safetensors")
    run(artifact, folder / "run")
    if torch.distributed.get_rank() == 1:
        wait_a_little_for(folder / "late")  # the first process must wait for this one
    run(artifact, folder / "late")
    torch.distributed.destroy_process_group()
