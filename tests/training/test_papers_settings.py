"""Settings of multi-vector rankers are their papers', those of others the long-document paper's."""

from dataclasses import asdict

import pytest

from farrank_rankers.chunking import Chunking
from farrank_rankers.family import MaxSimOptions
from farrank_rankers.spec import RankerSpec
from farrank_training.configuration import Loss, TrainingConfig
from farrank_training.losses import check_loss
from farrank_training.papers_settings import papers_settings

SUM = RankerSpec("maxsim", "b", Chunking("disjoint", 16, 16, 64))
MEAN = RankerSpec("maxsim", "b", Chunking("disjoint", 16, 16, 64), options=MaxSimOptions(mean=True))
OTHERS = [RankerSpec(family, "b", Chunking("sliding", 16, 10, 64)) for family in ("maxp", "biencoder")]


def test_a_multi_vector_ranker_learns_from_the_batch() -> None:
    found = papers_settings(SUM)
    assert asdict(found) == asdict(TrainingConfig()) | {
        "loss": "contrastive",
        "batch_size": 32,
        "accumulation": 1,
        "backbone_learning_rate": 3e-6,
        "learning_rate": 3e-6,
        "warmup": 0.05,
    }


def test_a_teachers_lists_have_32_documents() -> None:
    found = papers_settings(SUM, "kl")
    assert (found.loss, found.kl_scores, found.negatives) == ("kl", "min-max", 31)
    assert (found.batch_size, found.accumulation) == (1, 32)
    assert (found.backbone_learning_rate, found.learning_rate) == (1e-5, 1e-5)


@pytest.mark.parametrize("loss", [None, "kl", "margin-mse", "cross-entropy"])
def test_settings_fit_the_ranker_and_a_mean_is_scaled(loss: Loss | None) -> None:
    for spec, scale in ((SUM, 1.0), (MEAN, 32.0)):
        found = papers_settings(spec, loss)
        check_loss(spec, found)
        assert found.loss == (loss or "contrastive")
        assert found.score_scale == scale
        assert found.batch_size * found.accumulation == 32


@pytest.mark.parametrize("spec", OTHERS)
def test_other_families_keep_the_defaults(spec: RankerSpec) -> None:
    assert papers_settings(spec) == TrainingConfig()
    assert papers_settings(spec, "ranknet") == TrainingConfig(loss="ranknet")
