"""The small file that makes a folder one of our indexes."""

import json
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NAME = "farrank-index.json"


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What an index holds and which version of Farrank made it."""

    documents: int
    skipped_blank_documents: int
    created_by: str

    def write(self, folder: Path) -> None:
        """Write the manifest into an index's folder."""
        (folder / NAME).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> IndexManifest | None:
    """Read a folder's manifest; None if it has none, or one that is not ours."""
    try:
        return IndexManifest(**json.loads((folder / NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def created_by() -> str:
    """Name this version of Farrank."""
    try:
        return f"farrank {version('farrank')}"
    except PackageNotFoundError:
        return "farrank (not installed)"
