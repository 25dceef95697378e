"""Write a folder whole or not at all: beside its place, where it is renamed to when all of it is there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def folder_in_place(place: Path, check_free: Callable[[], None]) -> Iterator[Path]:
    """Give an empty folder, and put it in its place when the block ends; what stood there is deleted.

    `check_free` is asked at the end. If it or the block raises, what stood there stays. If Ctrl-C comes, the
    old folder or the new one is there whole. The place's parent must be there.
    """
    # A neighbour, so that renaming stays inside one file system, wherever a linked folder leads.
    with TemporaryDirectory(
        dir=place.parent, prefix=f".{place.name}.", ignore_cleanup_errors=True
    ) as scratch:
        making, old = Path(scratch, "new"), Path(scratch, "old")
        making.mkdir()
        yield making
        check_free()  # making takes a while, and others may have come first
        try:
            if place.exists():
                place.rename(old)
            making.rename(place)
        except BaseException:
            if old.exists() and not place.exists():
                old.rename(place)
            raise
