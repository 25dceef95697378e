"""A calibrated plan stands beside `ranker.json`, and changes neither the version nor the exports."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farrank_rankers.depth.plan import DepthPlan, Figures, Round
from farrank_rankers.errors import RankerError
from farrank_rankers.exports.export_folder import find_exports, open_exported
from farrank_rankers.files.depth_file import DEPTH_FILE, read_plan, write_plan
from farrank_rankers.files.open import Overrides, open_ranker, open_reader
from farrank_rankers.files.save import save_ranker

FIGURES = Figures("MRR", 0.97, 0.99, 0.975, 1.0, 200, 3.0, 550.0)
PLAN = DepthPlan((Round(1.0, 3),), 0.1, FIGURES)


@pytest.fixture
def artifact(tiny_rankers: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_rankers["maxp"], tmp_path / "maxp"))


def test_the_plan_is_read_with_its_figures_and_the_version_stays(artifact: Path) -> None:
    before = open_ranker(artifact)
    assert read_plan(artifact) is None
    write_plan(artifact, PLAN)
    after = open_ranker(artifact)
    assert (before.spec.depth, after.spec.depth) == (None, PLAN)
    assert after.spec.depth is not None
    assert str(after.spec.depth.figures) == "calibrated to keep 97% of MRR"
    assert after.version == before.version
    # A saved copy has the plan in its spec.
    save_ranker(after, artifact)
    assert not (artifact / DEPTH_FILE).exists()
    assert open_reader(artifact).spec == after.spec


def test_exports_of_the_artifact_stay_valid(tiny_exports: dict[str, Path], tmp_path: Path) -> None:
    exported = Path(shutil.copytree(tiny_exports["maxp"], tmp_path / "maxp"))
    write_plan(exported, PLAN)
    (export,) = find_exports(exported)
    assert open_exported(export).reader.spec.depth == PLAN


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 1.0}, "keep is 1.0; it must be above 0 and below 1"),
        ({"queries": 0}, "queries is 0; it must be at least 1"),
        ({"tokens": -1.0}, "tokens is -1.0; it must be at least 0"),
        ({"low": 1.5}, "low is 1.5; it must be at most high, 1.0"),
        ({"measure": ""}, "measure is ''; it must be a name"),
        ({"kept": "much"}, "figures.kept is 'much'; it must be a number"),
        ({"cost": 1}, "figures has the unknown key cost"),
    ],
)
def test_damaged_figures_are_refused(artifact: Path, changes: dict[str, Any], message: str) -> None:
    write_plan(artifact, PLAN)
    path = artifact / DEPTH_FILE
    values = json.loads(path.read_text())
    values["figures"] |= changes
    path.write_text(json.dumps(values))
    with pytest.raises(RankerError, match=message) as raised:
        open_reader(artifact)
    assert DEPTH_FILE in str(raised.value)


def test_a_plan_without_figures_is_read(artifact: Path) -> None:
    write_plan(artifact, replace(PLAN, figures=None))
    assert open_reader(artifact).spec.depth == replace(PLAN, figures=None)


def test_a_changed_ranker_keeps_the_plan_without_its_figures(artifact: Path) -> None:
    write_plan(artifact, PLAN)
    assert open_reader(artifact, window=None).spec.depth == PLAN
    several = Overrides(window=100), Overrides(max_document_tokens=1431), Overrides(max_query_tokens=16)
    for changes in several:
        assert open_reader(artifact, **changes).spec.depth == replace(PLAN, figures=None)
