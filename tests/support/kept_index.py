"""An index with stores, built for a test, and copies with fewer stores."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import IndexOptions, Store, build_index
from farrank_indexes.index_manifest import read_manifest


def kept_index(folder: Path, texts: dict[str, str], stores: Sequence[Store]) -> Path:
    """Index texts by their ids, with stores."""
    build_index([IndexDocument(doc_id, text) for doc_id, text in texts.items()], folder, IndexOptions(stores))
    return folder


def copy_with(index: Path, folder: Path, *kinds: str) -> Path:
    """Copy an index, with stores of only these kinds."""
    shutil.copytree(index, folder)
    manifest = read_manifest(folder)
    assert manifest is not None
    replace(manifest, stores=tuple(key for key in manifest.stores if key.startswith(kinds))).write(folder)
    return folder
