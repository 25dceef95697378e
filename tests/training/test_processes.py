"""Processes that train together compute the same as one process."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from farrank_rankers.files.save import save_ranker
from farrank_trec import read_run
from support import forked, trained_together
from support.training_groups import MakeRanker


@pytest.fixture(scope="module")
def artifact(make_ranker: MakeRanker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "maxp"
    save_ranker(make_ranker("maxp"), folder)
    return folder


@pytest.fixture(scope="module")
def multi_vector(make_ranker: MakeRanker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "maxsim"
    save_ranker(make_ranker("maxsim"), folder)
    return folder


@pytest.fixture(scope="module")
def together(artifact: Path, multi_vector: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two processes, with gloo."""
    folder = tmp_path_factory.mktemp("together")
    tests = Path(__file__).parents[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = forked.run(
        [*torchrun, trained_together.__file__, artifact, multi_vector, folder],
        os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *sys.path]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_two_processes_take_the_step_of_one(artifact: Path, together: Path, tmp_path: Path) -> None:
    expected, found = (
        trained_together.step(artifact, tmp_path),
        load_file(together / "gradients.safetensors"),
    )
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_uneven_batches_and_their_negatives_do_not_depend_on_the_processes(
    multi_vector: Path, together: Path, tmp_path: Path
) -> None:
    config, groups = trained_together.CONTRASTIVE, trained_together.UNEVEN
    expected = trained_together.step(multi_vector, tmp_path, config, groups)
    found = load_file(together / "contrastive.safetensors")
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_two_processes_make_the_run_of_one(artifact: Path, together: Path, tmp_path: Path) -> None:
    trained_together.run(artifact, tmp_path / "run")
    reports: list[dict[str, Any]] = []
    for folder in (together / "run", tmp_path / "run", together / "late"):
        reports.append(json.loads((folder / "training.json").read_text()))
        assert not (folder / "checkpoints").exists()
    assert [report["processes"] for report in reports] == [2, 1, 2]
    assert [report["steps"] for report in reports] == [2, 2, 2]
    assert reports[0]["measures"] == reports[1]["measures"] == reports[2]["measures"]
    runs = [read_run(folder / "run" / "dev.trec") for folder in (together, tmp_path)]
    assert [[each.doc_id for each in ranked] for ranked in runs[0].values()] == [
        [each.doc_id for each in ranked] for ranked in runs[1].values()
    ]
