"""Every family learns eight triples by heart, with a loss near 0."""

from pathlib import Path

import pytest
import torch

from farrank_rankers.family import FAMILIES
from farrank_training.batches import Collator
from farrank_training.configuration import TrainingConfig
from farrank_training.losses import hinge
from farrank_training.ranking_trainer import RankingTrainer
from support.training_groups import Groups, MakeRanker, triples

# Steps, and learning rates of the backbone and of the rest. Late interaction's three small transformers learn
# from random weights. KNRM and the transformers over passages need more steps, and the latter lower rates.
USUAL = (40, 4e-3, 4e-3)
LONGER = {
    "parade-transf-pretr-lateir": (70, 1.5e-3, 1.5e-3),
    # At higher rates the last digits of the initial weights decide whether it learns.
    "cedr-drmm": (100, 3e-3, 3e-3),
    "cedr-knrm": (70, 3e-3, 2e-3),
    "parade-transf-rand": (70, 3e-3, 2e-3),
    "parade-transf-pretr": (70, 3e-3, 2e-3),
    "parade-transf-pretr-q": (70, 3e-3, 2e-3),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_overfits_eight_triples(family: str, make_ranker: MakeRanker, tmp_path: Path) -> None:
    ranker, groups = make_ranker(family), triples()
    steps, of_backbone, of_others = LONGER.get(family, USUAL)
    config = TrainingConfig(
        batch_size=len(groups),
        accumulation=1,
        backbone_learning_rate=of_backbone,
        learning_rate=of_others,
        score_scale=5.0,
        checkpoint_every=1000,
    )
    RankingTrainer(ranker, Groups(groups, times=steps), config, tmp_path, cpu=True).train_on()
    batch = Collator(ranker.reader)(groups)
    with torch.inference_mode():
        scores = ranker.eval()(batch["batch"], batch["counts"], batch["query"]).view(len(groups), -1)
    assert hinge(scores * config.score_scale).max() < 0.5
    assert (scores[:, 0] > scores[:, 1]).all()
