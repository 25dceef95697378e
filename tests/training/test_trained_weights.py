"""The weights that learn: all, the last layers, or low-rank differences that are merged at the end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.save import save_ranker
from farrank_rankers.ranker import Ranker
from farrank_training.configuration import TrainingConfig
from farrank_training.errors import TrainingError
from farrank_training.lora import merge_lora
from farrank_training.ranking_trainer import RankingTrainer
from farrank_training.trained_weights import choose_weights, layers_of, optimizer_groups
from support.training_groups import Groups, MakeRanker, triples

QUERY, TEXTS = "neural engine", ("the engine windows " * 20, "hello", "")


def changed(ranker: Ranker, folder: Path, **settings: Any) -> set[str]:
    """Train a little. Returns the names of the changed weights."""
    before = {name: weight.clone() for name, weight in ranker.named_parameters()}
    config = TrainingConfig(accumulation=2, backbone_learning_rate=1e-3, **settings)
    RankingTrainer(ranker, Groups(triples(4)), config, folder, cpu=True).train_on()
    if config.lora_rank is not None:
        merge_lora(ranker.encoder.backbone)
    after = dict(ranker.named_parameters())
    assert after.keys() == before.keys()
    return {name for name, weight in after.items() if not torch.equal(weight, before[name])}


def test_the_last_layers_learn_alone(make_ranker: MakeRanker, tmp_path: Path) -> None:
    names = changed(make_ranker("parade-attn"), tmp_path, trained_layers=1)
    assert {name.split(".")[0] for name in names} == {"encoder", "aggregator"}
    of_backbone = {name for name in names if name.startswith("encoder.")}
    assert of_backbone
    assert all(name.startswith("encoder.backbone.encoder.layer.1.") for name in of_backbone)


def test_a_frozen_backbone_has_a_head_that_learns(make_ranker: MakeRanker, tmp_path: Path) -> None:
    names = changed(make_ranker("parade-attn"), tmp_path, trained_layers=0)
    assert names
    assert all(name.startswith("aggregator.") for name in names)


def test_a_cross_encoders_own_head_learns(make_ranker: MakeRanker, tmp_path: Path) -> None:
    names = changed(make_ranker("cross-encoder"), tmp_path, trained_layers=0)
    expected = ("encoder.backbone.classifier.", "encoder.backbone.bert.pooler.")
    assert {next(each for each in expected if name.startswith(each)) for name in names} == set(expected)


def test_a_biencoder_without_layers_has_nothing_to_learn(make_ranker: MakeRanker, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no other weight of the ranker learns"):
        changed(make_ranker("biencoder"), tmp_path, trained_layers=0)


@pytest.mark.parametrize(("family", "prefix"), [("maxp", ""), ("cross-encoder", "bert.")])
def test_low_rank_differences_are_merged(
    make_ranker: MakeRanker, tmp_path: Path, family: str, prefix: str
) -> None:
    ranker = make_ranker(family)
    before = {name: weight.clone() for name, weight in ranker.named_parameters()}
    names = changed(ranker, tmp_path / "run", lora_rank=2, trained_layers=1, lora_learning_rate=1e-2)
    of_layers = {name for name in names if ".layer." in name}
    assert of_layers
    assert all(
        name.startswith(f"encoder.backbone.{prefix}encoder.layer.1.") and name.endswith(".weight")
        for name in of_layers
    )
    for name in of_layers:
        difference = ranker.get_parameter(name) - before[name]
        assert torch.linalg.matrix_rank(difference, rtol=1e-3) <= 2
    expected = [found.score for found in ranker.eval().score(QUERY, TEXTS)]
    save_ranker(ranker, tmp_path / "artifact")
    opened = open_ranker(tmp_path / "artifact")
    assert [found.score for found in opened.score(QUERY, TEXTS)] == expected


def test_differences_have_a_rate_of_their_own(make_ranker: MakeRanker) -> None:
    ranker, config = make_ranker("maxp"), TrainingConfig(lora_rank=2)
    choose_weights(ranker, config, seed=0)
    assert [group["lr"] for group in optimizer_groups(ranker, config)] == [2e-4, 1e-4]
    trained = {name for name, weight in ranker.named_parameters() if weight.requires_grad}
    assert all(".lora_" in name or name.startswith("aggregator.") for name in trained)


def test_differences_follow_the_seed(make_ranker: MakeRanker) -> None:
    def digest(seed: int) -> str:
        ranker = make_ranker("maxp")
        torch.rand(3)
        choose_weights(ranker, TrainingConfig(lora_rank=2), seed)
        return ranker.weights_digest

    assert digest(1) == digest(1) != digest(2)


def test_low_rank_without_peft_says_what_to_install(
    make_ranker: MakeRanker, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(TrainingError, match=r"pip install 'farrank\[lora\]'"):
        choose_weights(make_ranker("maxp"), TrainingConfig(lora_rank=2), seed=0)


def test_low_rank_of_no_layers(make_ranker: MakeRanker) -> None:
    with pytest.raises(TrainingError, match="the layers that learn have no linear map"):
        choose_weights(make_ranker("maxp"), TrainingConfig(lora_rank=2, trained_layers=0), seed=0)


def test_every_architecture_has_layers(make_architecture: Callable[[str], torch.nn.Module]) -> None:
    for architecture in ("bert", "electra", "distilbert", "roberta", "deberta-v2", "longformer", "llama"):
        assert len(layers_of(make_architecture(architecture))) == 2, architecture
    with pytest.raises(TrainingError, match="Linear has no layers by that name"):
        layers_of(torch.nn.Linear(2, 2))
