from pathlib import Path

import pytest

from farrank_exporters.export import artifact_of
from farrank_rankers.ensemble import Ensemble, save_ensemble
from farrank_rankers.errors import ExportError
from farrank_rankers.files.open import open_ranker


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_artifact_is_its_own(tiny_rankers: dict[str, Path]) -> None:
    with artifact_of(str(tiny_rankers["maxp"]), None) as (ranker, folder):
        assert folder == tiny_rankers["maxp"]
        assert ranker.spec.family == "maxp"


def test_any_other_ranker_is_written_first(tmp_path: Path) -> None:
    out = tmp_path / "new" / "minilm"
    with artifact_of("embedded", out) as (ranker, folder):
        assert not out.exists()
        (folder / "exports").mkdir()
    assert open_ranker(out).version == ranker.version == open_ranker("embedded").version
    assert "exports" in names(out)
    assert names(tmp_path / "new") == {"minilm"}
    with artifact_of("embedded", out) as (_, folder):
        assert folder == out


def test_a_failure_leaves_no_artifact(tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), artifact_of(str(tiny_rankers["maxp"]), tmp_path / "out"):
        raise KeyboardInterrupt
    assert names(tmp_path) == set()


def test_a_ranker_without_an_artifact_needs_a_place() -> None:
    with (
        pytest.raises(ExportError, match="--out is missing: embedded is not an artifact"),
        artifact_of("embedded", None),
    ):
        pass


def test_a_place_that_is_taken_is_refused(tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    maxp, sump = str(tiny_rankers["maxp"]), tiny_rankers["sump"]
    with pytest.raises(ExportError, match="must be a new or an empty folder"), artifact_of(maxp, tmp_path):
        pass
    with (
        pytest.raises(ExportError, match=r"holds ranker [0-9a-f]{16}, but .* is [0-9a-f]{16}"),
        artifact_of(maxp, sump),
    ):
        pass
    assert names(tmp_path) == {"notes.txt"}


def test_the_folder_one_is_in_is_refused_by_whatever_name(
    tiny_rankers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "new").mkdir(parents=True)
    maxp = str(tiny_rankers["maxp"].resolve())
    monkeypatch.chdir(tmp_path / "here" / "new")
    for out in (Path(), Path("../new")):
        with pytest.raises(ExportError, match="here/new: is the current folder"), artifact_of(maxp, out):
            pass
    monkeypatch.chdir(tmp_path / "here")
    with artifact_of(maxp, Path("new/../new")):
        pass
    assert open_ranker(tmp_path / "here" / "new").spec.family == "maxp"


def test_an_ensemble_says_why_it_has_no_graph(tiny_rankers: dict[str, Path], tmp_path: Path) -> None:
    members = {name: open_ranker(tiny_rankers[name]) for name in ("maxp", "avgp")}
    save_ensemble(Ensemble(members), tmp_path)
    with (
        pytest.raises(ExportError, match=r"cannot be exported: .* export each of its members"),
        artifact_of(str(tmp_path), None),
    ):
        pass
