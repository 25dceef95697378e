"""The folders of an artifact's exports.

An export is written whole or not at all, and checked when it is opened.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from farrank_rankers.errors import ExportError, SpecError, naming
from farrank_rankers.exports.manifest import ExportManifest
from farrank_rankers.files.folder_in_place import folder_in_place
from farrank_rankers.files.model_files import SPEC_FILE
from farrank_rankers.files.open import Overrides, open_reader, reader_and_files
from farrank_rankers.json_values import read_text
from farrank_rankers.reader import Reader
from farrank_rankers.spec import content_version, encodings_version


def checksum(path: Path) -> str:
    """Give a file's SHA-256 in hexadecimal digits.

    Raises: ExportError if it is missing or cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise ExportError(f"{path} is missing") from error
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from error


def checksums(paths: Iterable[Path]) -> dict[str, str]:
    """Give the SHA-256 of files by their names.

    Raises: ExportError if one is missing or cannot be read.
    """
    return {path.name: checksum(path) for path in sorted(paths)}


EXPORTS = "exports"
MANIFEST = "manifest.json"
NO_ENSEMBLES = "an ensemble has no model of its own; export each of its members"


def cache_folder() -> Path:
    """The folder of files cached for later starts; exports are in its subfolder `exports`.

    It is `FARRANK_CACHE`, else `farrank` in `XDG_CACHE_HOME`, else `~/.cache/farrank`.
    """
    if own := os.environ.get("FARRANK_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "farrank"


@dataclass(frozen=True, slots=True)
class Export:
    """An export's folder and its manifest."""

    folder: Path
    manifest: ExportManifest

    @classmethod
    def read(cls, folder: Path) -> "Export":
        """Read an export's manifest, but not the files that it names.

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
        """Compare every file that the manifest names with its checksum.

        Raises: ExportError naming the file that is missing, unreadable or changed.
        """
        for name, expected in self.manifest.checksums.items():
            path = self.folder / name
            found = checksum(path)
            if found != expected:
                raise ExportError(
                    f"{path} is damaged: its SHA-256 is {found}, not {expected} as its manifest says; "
                    "export the ranker again"
                )

    def verify_sources(self) -> None:
        """Compare the artifact with the one that was exported; its weights may be left out.

        Raises: ExportError naming the file that changed.
        """
        artifact, manifest = self.folder.parent.parent, self.manifest
        for name, expected in manifest.sources.items():
            path = artifact / name
            if (path.exists() or path.suffix != _WEIGHTS) and checksum(path) != expected:
                raise ExportError(
                    f"{self.folder} is stale: {path} changed since; farrank export {artifact} --format "
                    f"{manifest.format} --precision {manifest.precision} --force exports it again"
                )

    def path(self, graph: str, runtime: str) -> Path:
        """Give the file that a runtime opens for a graph ("encoder", "aggregator")."""
        return self.folder / self.manifest.graphs[graph].file_for(runtime)


def find_exports(artifact: Path) -> list[Export]:
    """List an artifact's exports by name; their files are not checked.

    Raises: ExportError naming the manifest that is missing or wrong, or the folder that cannot be read.
    """
    exports = artifact / EXPORTS
    try:
        folders = [each for each in exports.iterdir() if each.is_dir() and not each.name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ExportError(f"{exports} cannot be read: {error.strerror}") from error
    return [Export.read(folder) for folder in sorted(folders)]


@contextmanager
def writing_export(artifact: Path, name: str, *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary folder for an export, and rename it to its place when the block ends.

    If the block raises, the artifact does not change.
    Raises: ExportError if the folder is not an artifact, or the export exists and must not be replaced.
    """
    if not (artifact / SPEC_FILE).is_file():
        raise ExportError(f"{artifact} is not an artifact: it has no {SPEC_FILE}")
    exports = artifact / EXPORTS
    place = exports / name

    def check_free() -> None:
        if place.exists() and not replace:
            raise ExportError(f"{place} exists; --force replaces it")

    check_free()
    made = not exports.exists()
    exports.mkdir(exist_ok=True)
    try:
        with folder_in_place(place, check_free) as building:
            yield building
    finally:
        if made:
            with suppress(OSError):  # it holds an export
                exports.rmdir()


# The files besides the weights on which an artifact's scores depend.
_TEXTS = (SPEC_FILE, "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json")
_WEIGHTS = ".safetensors"


@dataclass(frozen=True, slots=True, eq=False)
class ExportedRanker:
    """An export with its ranker's reader and versions, like those of `Ranker`."""

    export: Export
    reader: Reader
    version: str
    encodings_version: str


def open_exported(export: Export, **overrides: Unpack[Overrides]) -> ExportedRanker:
    """Open an artifact's export. Every file is read once, for its checksum.

    The ranker's weights may be missing if only the export is served.
    Raises: ExportError if one of its files, or the ranker, has changed; SpecError if an override exceeds the
    export's limits.
    """
    artifact, manifest = export.folder.parent.parent, export.manifest
    export.verify()
    export.verify_sources()
    made_for = open_reader(artifact)
    reader, files = reader_and_files(artifact, overrides)
    check_within(made_for, reader)
    content = (reader.spec, reader.tokenizer.files, files.config, manifest.weights_digest)
    return ExportedRanker(export, reader, content_version(*content), encodings_version(*content))


def source_files(artifact: Path) -> list[Path]:
    """List the files of an artifact that its scores depend on."""
    texts = [artifact / name for name in _TEXTS if (artifact / name).is_file()]
    return [*texts, *artifact.glob(f"*{_WEIGHTS}")]


def check_within(made_for: Reader, asked: Reader) -> None:
    """Refuse overrides that change constants of the graph.

    Raises: SpecError naming the field.
    """
    then, now = made_for.spec, asked.spec
    for field in ("options", "max_query_tokens", "pad_query_to"):
        if getattr(then, field) != getattr(now, field):
            raise SpecError(
                f"{field} is {getattr(now, field)!r}; the export was made for {getattr(then, field)!r}: "
                "serve the ranker with torch, or export one that has it"
            )
    exactly = asked.backbone.known.length_decides
    longest, limit = asked.max_input_tokens, made_for.max_input_tokens
    if longest > limit or (exactly and longest != limit):
        raise SpecError(
            f"chunking.window is {now.chunking.window}, which makes inputs of up to {longest} tokens; the "
            f"export was made for {'just' if exactly else 'at most'} {limit}"
        )
