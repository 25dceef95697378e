"""What cannot be exported, and why: properties of a model, to be told before anything is tried."""

from collections.abc import Mapping
from pathlib import Path

from farrank_rankers.family import ENSEMBLE
from farrank_rankers.files.model_files import lists_members

# By family. Those of `family.FAMILIES` all have a graph.
NOT_EXPORTABLE: Mapping[str, str] = {
    ENSEMBLE: "an ensemble has no model of its own; export each of its members",
}


def why_not_exportable(folder: Path) -> str | None:
    """Say why the ranker in a folder cannot be exported; None if it can.

    Raises: SourceError if its ranker.json is damaged.
    """
    return NOT_EXPORTABLE[ENSEMBLE] if lists_members(folder) else None
