"""Ensembles with all their members' weights, as a reference for what a server computes."""

from pathlib import Path

from farrank_rankers.ensemble import Ensemble, member_folders
from farrank_rankers.files.open import open_ranker


def open_ensemble(folder: Path) -> Ensemble:
    """Open an ensemble's members. Raises: as `member_folders` and `open_ranker`."""
    return Ensemble({name: open_ranker(member) for name, member in member_folders(folder).items()})
