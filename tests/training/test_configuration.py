"""Settings of a training: the papers' by default, each within its limit, from a file as from the flags."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from farrank_training.configuration import TrainingConfig, settings
from farrank_training.errors import TrainingError


def test_the_defaults_are_the_papers() -> None:
    config = TrainingConfig()
    assert (config.loss, config.margin, config.negatives, config.negatives_from) == ("hinge", 1.0, 1, 100)
    assert (config.batch_size, config.accumulation, config.epochs) == (1, 16, 1)
    assert (config.backbone_learning_rate, config.learning_rate, config.weight_decay) == (1e-5, 1e-4, 1e-7)
    assert (config.warmup, config.epoch_decay) == (0.2, 0.95)


def test_every_setting_says_what_it_means() -> None:
    assert [name for name, _, setting in settings() if setting.meaning] == [
        each.name for each in fields(TrainingConfig)
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"loss": "mse"},
            "loss is 'mse'; it must be one of hinge, ranknet, cross-entropy, contrastive, margin-mse, kl",
        ),
        ({"margin": 0}, "margin is 0.0; it must be above 0"),
        ({"score_scale": -1.0}, "score_scale is -1.0; it must be above 0"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"epochs": 1.5}, "epochs is 1.5; it must be a whole number"),
        ({"batch_size": True}, "batch_size is True; it must be a whole number"),
        ({"learning_rate": -1e-4}, "learning_rate is -0.0001; it must be at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number"),
        ({"warmup": 1.0}, "warmup is 1.0; it must be at least 0 and below 1"),
        ({"epoch_decay": 1.1}, "epoch_decay is 1.1; it must be above 0 and at most 1"),
        ({"trained_layers": -1}, "trained_layers is -1; it must be at least 0"),
        ({"precision": "fp16"}, "precision is 'fp16'; it must be one of fp32, bf16"),
        ({"gradient_checkpointing": 1}, "gradient_checkpointing is 1; it must be true or false"),
        (
            {"negatives": 5, "negatives_from": 4},
            "negatives_from is 4; it must be at least the 5 negatives",
        ),
    ],
)
def test_a_value_beyond_its_limit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError) as caught:
        TrainingConfig(**changes)
    assert str(caught.value) == message


def test_whole_numbers_are_numbers() -> None:
    assert TrainingConfig(margin=2) == TrainingConfig(margin=2.0)
    assert TrainingConfig(margin=2).digest == TrainingConfig(margin=2.0).digest != TrainingConfig().digest


def test_processes_share_a_step() -> None:
    config = TrainingConfig(batch_size=2, accumulation=16)
    assert config.accumulation_of(4) == 4
    with pytest.raises(TrainingError) as caught:
        config.accumulation_of(3)
    expected = "accumulation is 16; it must be a multiple of the 3 processes that share a step"
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"epochs": 2, "learning_rate": 1e-3, "patience": null}'),
        ("a.yaml", "epochs: 2\nlearning_rate: 1e-3\npatience: null\n"),
        ("a.yml", "epochs: 2\nlearning_rate: 1.0e-3\n"),
    ],
)
def test_settings_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert TrainingConfig.read(tmp_path / name) == TrainingConfig(epochs=2, learning_rate=1e-3)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    assert TrainingConfig.read(tmp_path / "a.yaml") == TrainingConfig()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "", "a.toml: settings must be in a .json, .yaml or .yml file"),
        ("a.json", "{", "a.json is not JSON: "),
        ("a.yaml", "a: b: c", "a.yaml:1: not YAML: "),
        ("a.yaml", "[1]", "a.yaml: the file is [1]; it must be an object"),
        ("a.yaml", "epoch: 1", "a.yaml: the file has the unknown key epoch; known are loss, margin, "),
        ("a.yaml", "learning_rate: fast", "a.yaml: learning_rate is 'fast'; it must be a number"),
        ("a.json", '{"epochs": 0}', "a.json: epochs is 0; it must be at least 1"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TrainingError) as caught:
        TrainingConfig.read(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / message))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"none\.json is missing"):
        TrainingConfig.read(tmp_path / "none.json")


def test_changes_keep_the_rest() -> None:
    changed = TrainingConfig(epochs=3).with_changes({"margin": 2.0})
    assert asdict(changed) == asdict(TrainingConfig()) | {"epochs": 3, "margin": 2.0}
