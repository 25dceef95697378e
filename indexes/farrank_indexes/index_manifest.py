"""The manifest of an index, in a file next to Lucene's files."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from farrank_rankers.json_values import bounded_text, loads
from farrank_settings.errors import ConfigError

MANIFEST = "farrank-index.json"


@dataclass(frozen=True, slots=True)
class VectorsManifest:
    """The chunk vectors of an index: their number, their width and their origin.

    `version` is the bi-encoder's, or None if the collection contained the vectors. `places` is the first
    place that was never given to a chunk.
    """

    chunks: int
    width: int
    version: str | None = None
    places: int = 0


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """The content of an index, and the version of Farrank that made it.

    `id` is new with each build. `generation` counts the changes since the build. `places` is the first place
    that was never given to a document. An index made by a version without these fields has the id "".
    """

    documents: int
    skipped_blank_documents: int
    created_by: str
    id: str = ""
    generation: int = 0
    places: int = 0
    expanded: bool = False
    impacts: bool = False
    vectors: VectorsManifest | None = None
    stores: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Make a manifest of a file's values. Fields of later versions are ignored."""
        known = _known(cls, values)
        known["stores"] = tuple(known.get("stores", ()))
        if known.get("vectors") is not None:
            vectors = _known(VectorsManifest, known["vectors"])
            # Without the field `places`, the number of chunks included the deleted ones.
            known["vectors"] = VectorsManifest(**{"places": vectors["chunks"], **vectors})
        return cls(**known)

    def write(self, folder: Path) -> None:
        """Write the manifest into the index's folder."""
        write_json(folder / MANIFEST, asdict(self))


def read_manifest(folder: Path) -> IndexManifest | None:
    """Read the manifest of a folder. Returns None if it has none.

    Raises: ConfigError if it is damaged. Ignoring it would lose everything that it says about the index.
    """
    path = folder / MANIFEST
    try:
        return IndexManifest.of(loads(bounded_text(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: is damaged ({type(error).__name__}: {error}); index the collection again"
        ) from error


def _known(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: values[each.name] for each in fields(kind) if each.name in values}


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file completely or not at all, and sync it to disk."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as out:
        out.write(json.dumps(values, indent=2) + "\n")
        out.flush()
        os.fsync(out.fileno())
    fresh.rename(path)
