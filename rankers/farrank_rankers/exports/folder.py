"""Where an artifact's exports lie, how one is opened, and how one is put there whole or not at all."""

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from farrank_rankers.errors import ExportError, naming
from farrank_rankers.exports.checksums import verify
from farrank_rankers.exports.manifest import ExportManifest
from farrank_rankers.files.json_files import read_text
from farrank_rankers.files.model_files import SPEC_FILE

EXPORTS = "exports"
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Export:
    """An export's folder and what its manifest says."""

    folder: Path
    manifest: ExportManifest

    @classmethod
    def read(cls, folder: Path) -> "Export":
        """Read an export's manifest, and none of the files that it names.

        Raises: ExportError naming file and key, or the folder that the manifest belongs to.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise ExportError(f"{path} is missing")
        with naming(path):
            manifest = ExportManifest.from_json(read_text(path))
            if folder.name != manifest.name:
                raise ExportError(f"the folder {folder.name} holds the manifest of {manifest.name}")
        return cls(folder, manifest)

    def verify(self) -> None:
        """Read every file that the manifest names and hold it to its checksum.

        Raises: ExportError naming the file that is missing or changed.
        """
        verify(self.folder, self.manifest.checksums)

    def path(self, graph: str, runtime: str) -> Path:
        """Find the file that a runtime opens for a graph ("encoder", "aggregator")."""
        return self.folder / self.manifest.graphs[graph].file_for(runtime)


def find_exports(artifact: Path) -> list[Export]:
    """List an artifact's exports by name; their files are not looked at.

    Raises: ExportError naming the manifest that is missing or wrong.
    """
    folder = artifact / EXPORTS
    if not folder.is_dir():
        return []
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    return [Export.read(folder / name) for name in names]


def find_export(artifact: Path, name: str) -> Export:
    """Find an artifact's export by its name, "onnx-fp32" say.

    Raises: ExportError listing those that are there, or naming what is wrong with this one.
    """
    folder = artifact / EXPORTS / name
    if not folder.is_dir():
        there = ", ".join(export.folder.name for export in find_exports(artifact)) or "none"
        raise ExportError(f"{artifact} has no export {name}; it has {there}")
    return Export.read(folder)


@contextlib.contextmanager
def writing_export(artifact: Path, name: str, *, replace: bool = False) -> Iterator[Path]:
    """Give a folder to write an export into, and put it in its place once the block has ended well.

    A block that raises leaves the artifact as it was.
    Raises: ExportError if the folder is no artifact, or the export exists and is not to be replaced.
    """
    if not (artifact / SPEC_FILE).is_file():
        raise ExportError(f"{artifact} is no artifact: it has no {SPEC_FILE}")
    place = artifact / EXPORTS / name
    check_free(place, replace)
    made = not place.parent.exists()
    place.parent.mkdir(exist_ok=True)
    try:
        with _sibling(place) as building:
            yield building
            check_free(place, replace)  # building takes minutes, and others may have come first
            _put(building, place)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):  # not empty: another export has come
                place.parent.rmdir()
        raise


def check_free(place: Path, replace: bool) -> None:
    """Look whether an export may be written.

    Raises: ExportError if one is there and is not to be replaced.
    """
    if place.exists() and not replace:
        raise ExportError(f"{place} exists; --force replaces it")


def _put(building: Path, place: Path) -> None:
    """Rename a folder to its place; what stood there goes only once the new one stands."""
    with _sibling(place) as old:
        replaces = place.exists()
        if replaces:
            place.rename(old)  # onto an empty folder, which POSIX replaces
        try:
            building.rename(place)
        except BaseException:
            if replaces:
                old.rename(place)
            raise


@contextlib.contextmanager
def _sibling(place: Path) -> Iterator[Path]:
    """Make an empty folder beside a place, on the same file system, for as long as it is needed."""
    folder = place.with_name(f".{place.name}.{secrets.token_hex(4)}.part")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
