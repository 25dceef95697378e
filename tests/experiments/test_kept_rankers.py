"""The rankers that a finished experiment writes for the project can be opened, and are the wanted ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from farrank_experiments.__main__ import main
from farrank_experiments.contenders import CONTENDERS
from farrank_experiments.kept_rankers import keep_rankers
from farrank_experiments.plan import ExperimentPlan
from farrank_experiments.settings import quick
from farrank_experiments.steps import StepFolders
from farrank_rankers.files.open import open_ranker
from farrank_rankers.files.untrained import new_ranker
from support.articles import write_articles

pytestmark = pytest.mark.usefixtures("one_thread")


def test_rankers_are_written_as_differences(tiny_backbone: Path, tmp_path: Path) -> None:
    base = shutil.copytree(tiny_backbone, tmp_path / "base")
    backbone = new_ranker("firstp", tiny_backbone, seed=5, pretrained=False).encoder.backbone
    save_file(dict(backbone.state_dict()), base / "model.safetensors")
    settings = replace(
        quick(str(base)), pretrained=True, seeds=1, dose_seeds=1, whole_seeds=0, position_questions=1
    )
    contenders = [CONTENDERS[name] for name in ("firstp", "avgp", "parade-attn", "neural-model1")]
    squad = write_articles(tmp_path)
    plan = ExperimentPlan(settings, squad, StepFolders(tmp_path / "work"), contenders, [], lambda said: None)
    plan.folders.do(plan.steps(), lambda said: None)

    folders = list(keep_rankers(plan, tmp_path / "out"))

    assert [each.name for each in folders] == ["firstp", "avgp", "parade-attn", "neural-model1"]
    for folder in folders:
        kept, trained = open_ranker(folder), plan.frozen_ranker(CONTENDERS[folder.name], "far", 0)
        texts = ["stone " * 40 + "harbour", "sea"]
        expected = torch.tensor([each.score for each in trained.score("old harbour", texts)])
        assert [each.score for each in kept.score("old harbour", texts)] == pytest.approx(expected, abs=5e-3)
        assert kept.spec.provenance["MRR"].startswith("Biased 0.")
        assert kept.spec.provenance["command"] == "make experiment EXPERIMENT_ARGS='--keep FOLDER'"
        assert kept.spec.backbone == "base"
        # The file has low-rank differences, not the matrices.
        size = (folder / "difference.safetensors").stat().st_size
        assert size < (base / "model.safetensors").stat().st_size / 2

    # Other heads on the encoder of one of these.
    taken = replace(settings, encoder=str(folders[0]))
    some = [contenders[0], contenders[-1]]  # one over vectors, one over tokens
    again = ExperimentPlan(taken, squad, StepFolders(tmp_path / "again"), some, [], lambda said: None)
    again.folders.do(again.steps(), lambda said: None)
    for folder in keep_rankers(again, tmp_path / "heads"):
        weights = load_file(folder / "difference.safetensors")
        assert not any(name.startswith("encoder.backbone.") for name in weights)
        provenance = open_ranker(folder).spec.provenance
        assert f"--encoder {folders[0]} --keep" in provenance["command"]
        assert provenance["questions"] == f"12 on the encoder of {folders[0]}"


def test_a_trial_writes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    squad = write_articles(tmp_path)
    given = ["--quick", "--squad", str(squad), "--work", str(tmp_path / "work"), "--rankers", "firstp"]

    assert main([*given, "--whole-rankers", "--keep", str(tmp_path / "out")]) == 1

    assert "--keep needs a backbone with weights" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
