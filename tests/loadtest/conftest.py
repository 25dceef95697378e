"""Where the collections lie that are no part of the project."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of collections: FARRANK_DATA, or the one beside the checkout."""
    folder = Path(os.environ.get("FARRANK_DATA", BESIDE))
    if not folder.is_dir():
        pytest.skip(f"needs the collections: {folder} is not there (FARRANK_DATA names another folder)")
    return folder
