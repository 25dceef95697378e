import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farrank_rankers.errors import ExportError
from farrank_rankers.exports.export_folder import Export, find_exports, writing_export

WriteExport = Callable[..., Export]


def files(artifact: Path) -> set[str]:
    return {str(path.relative_to(artifact)) for path in artifact.rglob("*")}


def test_exports_are_found_by_name(artifact: Path, write_export: WriteExport) -> None:
    assert find_exports(artifact) == []
    int8, fp32 = write_export("int8"), write_export("fp32")
    assert find_exports(artifact) == [fp32, int8]
    assert [export.manifest.name for export in (fp32, int8)] == ["onnx-fp32", "onnx-int8"]


def test_a_failure_leaves_the_artifact_as_it_was(artifact: Path) -> None:
    before = files(artifact)

    def interrupted() -> None:
        with writing_export(artifact, "onnx-fp32") as folder:
            (folder / "encoder.onnx").write_bytes(b"half")
            assert find_exports(artifact) == []  # an export that is being written is not found yet
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files(artifact) == before


def test_an_export_is_replaced_only_on_request(artifact: Path, write_export: WriteExport) -> None:
    export = write_export()
    (export.folder / "engines").mkdir()
    before = files(artifact)
    with pytest.raises(ExportError, match=r"onnx-fp32 exists; --force replaces it"):
        write_export()
    assert files(artifact) == before
    write_export(replace=True)
    assert files(artifact) == before - {"exports/onnx-fp32/engines"}


def test_a_failed_replacement_leaves_the_old_export(artifact: Path, write_export: WriteExport) -> None:
    export = write_export()
    before = files(artifact)
    with pytest.raises(ValueError, match="beyond"), writing_export(artifact, "onnx-fp32", replace=True):
        raise ValueError("beyond its bound")
    assert files(artifact) == before
    export.verify()


@pytest.mark.parametrize(("renamed", "stays"), [("old", "old"), ("onnx-fp32", "new")])
def test_ctrl_c_while_an_export_is_replaced_leaves_one_of_both(
    artifact: Path, write_export: WriteExport, monkeypatch: pytest.MonkeyPatch, renamed: str, stays: str
) -> None:
    """The interruption comes right after the old one was moved aside, or right after the new one was put."""
    (write_export().folder / "old").touch()
    rename = Path.rename

    def then_interrupted(path: Path, target: Path) -> None:
        rename(path, target)
        if target.name == renamed and path.name != "old":
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", then_interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_export(replace=True)
    (export,) = find_exports(artifact)
    export.verify()
    assert (export.folder / "old").exists() == (stays == "old")
    assert [path.name for path in (artifact / "exports").iterdir()] == ["onnx-fp32"]


def test_an_export_that_came_meanwhile_stays(artifact: Path, write_export: WriteExport) -> None:
    with pytest.raises(ExportError, match="exists"), writing_export(artifact, "onnx-fp32"):
        export = write_export()
    export.verify()
    assert find_exports(artifact) == [export]


def test_exports_may_be_kept_elsewhere(artifact: Path, write_export: WriteExport, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (artifact / "exports").symlink_to(tmp_path / "elsewhere", target_is_directory=True)

    def interrupted() -> None:
        with writing_export(artifact, "onnx-fp32") as folder:
            # It is on the target's file system, so that it can be renamed to its place.
            assert folder.resolve().is_relative_to(tmp_path / "elsewhere")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files(tmp_path / "elsewhere") == set()
    assert (artifact / "exports").is_symlink()
    export = write_export()
    assert find_exports(artifact) == [export]
    assert write_export(replace=True).folder.resolve() == tmp_path / "elsewhere" / "onnx-fp32"


def test_a_folder_that_cannot_be_read_is_named(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(folder: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(ExportError, match=r"maxp/exports cannot be read: Permission denied$"):
        find_exports(artifact)


def test_only_an_artifact_holds_exports(tmp_path: Path) -> None:
    with (
        pytest.raises(ExportError, match=r"is not an artifact: it has no ranker\.json"),
        writing_export(tmp_path, "onnx-fp32"),
    ):
        pass


def test_a_folder_without_a_manifest_is_named(artifact: Path) -> None:
    (artifact / "exports" / "onnx-fp32").mkdir(parents=True)
    with pytest.raises(ExportError, match=r"onnx-fp32/manifest\.json is missing"):
        find_exports(artifact)


def test_an_export_in_anothers_folder_is_refused(artifact: Path, write_export: WriteExport) -> None:
    folder = write_export().folder
    folder.rename(folder.with_name("onnx-int8"))
    with pytest.raises(
        ExportError, match=r"manifest\.json: the folder onnx-int8 holds the manifest of onnx-fp32"
    ):
        find_exports(artifact)


@pytest.mark.parametrize("name", ["encoder.onnx", "encoder.xml", "aggregator.onnx"])
def test_a_changed_byte_is_refused_with_the_files_name(write_export: WriteExport, name: str) -> None:
    export = write_export()
    export.verify()
    path = export.folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ExportError, match=f"{name} is damaged"):
        export.verify()
    path.unlink()
    with pytest.raises(ExportError, match=f"{name} is missing"):
        export.verify()
