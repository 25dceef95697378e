"""Every family from training to its use: an artifact opens, is served and exported with the same scores."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from farrank_cli.spawn import spawned_server
from farrank_client import Client
from farrank_exporters.export import export_ranker
from farrank_rankers.family import FAMILIES
from farrank_rankers.files.open import open_ranker
from farrank_rankers.ranker import Ranker
from farrank_training.configuration import TrainingConfig
from farrank_training.training_run import train
from support.exported_rankers import CALIBRATION, MEASURED
from support.training_groups import Groups, MakeRanker, triples

CONFIG = TrainingConfig(accumulation=2, learning_rate=1e-2, backbone_learning_rate=1e-3)
QUERY = "neural engine"
TEXTS = ("the engine windows over the text " * 12, "hello", "", "passages of the long document " * 3)
# Each takes up to ten seconds, and all of them two minutes on one core.
EXPORTED = tuple(FAMILIES) if os.environ.get("FARRANK_EXPORT_ALL") else ("parade-attn", "biencoder")
# As in test_zoo: KNRM's kernel of exact matches amplifies a cosine's last digit.
TOLERANCE = {name: family.rounding for name, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def trained(make_ranker: MakeRanker, artifacts: Path) -> dict[str, Ranker]:
    """A ranker of every family after two steps, in memory."""
    found = {}
    for family in FAMILIES:
        ranker = make_ranker(family)
        before = ranker.version
        train(ranker, Groups(triples(4)), CONFIG, artifacts / family, cpu=True)
        assert ranker.version != before
        found[family] = ranker
    return found


@pytest.fixture(scope="module")
def client(trained: dict[str, Ranker], artifacts: Path) -> Iterator[Client]:
    arguments = [f"--ranker={family}={artifacts / family}" for family in trained]
    with spawned_server([*arguments, "--log-level=warning"]) as server, Client(server.address) as opened:
        yield opened


@pytest.mark.parametrize("family", FAMILIES)
def test_an_artifact_opens_with_the_same_scores(
    trained: dict[str, Ranker], artifacts: Path, family: str
) -> None:
    opened, ranker = open_ranker(artifacts / family), trained[family]
    assert opened.version == ranker.version
    assert opened.spec == ranker.spec
    found, expected = ([each.score for each in one.score(QUERY, TEXTS)] for one in (opened, ranker))
    assert found == expected
    assert json.loads((artifacts / family / "training.json").read_text())["steps"] == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_an_artifact_is_served_with_the_same_scores(
    client: Client, trained: dict[str, Ranker], family: str
) -> None:
    expected = [each.score for each in trained[family].score(QUERY, TEXTS)]
    ranking = client.rerank(QUERY, list(TEXTS), ranker=family, depth="all")
    assert ranking.ranker.version == trained[family].version
    found = {each.index: each.score for each in ranking.results}
    assert [found[index] for index in range(len(TEXTS))] == pytest.approx(
        expected, rel=1e-5, abs=TOLERANCE[family]
    )


@pytest.mark.parametrize("family", EXPORTED)
def test_an_artifact_is_exported_within_its_bound(
    trained: dict[str, Ranker], artifacts: Path, family: str
) -> None:
    ranker = open_ranker(artifacts / family)
    export = export_ranker(
        ranker, artifacts / family, "onnx", "fp32", measured=MEASURED, calibration=CALIBRATION
    )
    assert export.manifest.source_version == trained[family].version
    assert {each.runtime for each in export.manifest.parity} == {"onnx", "openvino"}
    assert all(each.max_difference < 1e-4 for each in export.manifest.parity)
