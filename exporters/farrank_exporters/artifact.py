"""The artifact that an export goes into: the one given, or one written for any other ranker."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farrank_rankers.artifact import save_ranker
from farrank_rankers.errors import ExportError
from farrank_rankers.exports.exportable import why_not_exportable
from farrank_rankers.files.location import locate
from farrank_rankers.files.model_files import SPEC_FILE
from farrank_rankers.ranker import Ranker
from farrank_rankers.sources import open_ranker


@contextmanager
def artifact_of(source: str, out: Path | None, *, download: bool = False) -> Iterator[tuple[Ranker, Path]]:
    """Open a ranker and give the artifact that holds it.

    Without `out` the source must be an artifact. With it, an artifact of the ranker is written there, which
    stays only if the block ends well; one of the same ranker that stands there already is used as it is.
    Raises: ExportError if there is no place for the artifact; whatever opening the source raises.
    """
    folder = locate(source, download=download).folder
    reason = why_not_exportable(folder)
    if reason:
        raise ExportError(f"{source} cannot be exported: {reason}")
    if out is None:
        if not (folder / SPEC_FILE).is_file():
            raise ExportError(f"--out is missing: {source} is no artifact, and an export needs one to lie in")
        yield open_ranker(folder), folder
        return
    ranker = open_ranker(source, download=download)
    if (out / SPEC_FILE).is_file():
        standing = open_ranker(out)
        if standing.version != ranker.version:
            raise ExportError(
                f"--out {out}: holds ranker {standing.version}, and {source} is {ranker.version}"
            )
        yield standing, out
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"--out {out}: must be a new or an empty folder, or an artifact of {source}")
    # A neighbour, so that the rename stays inside one file system.
    out.parent.mkdir(parents=True, exist_ok=True)
    building = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        save_ranker(ranker, building)
        yield ranker, building
        building.rename(out)
    finally:
        shutil.rmtree(building, ignore_errors=True)
