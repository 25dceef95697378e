"""Write a folder whole or not at all: a temporary folder next to it is renamed when it is complete."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def folder_in_place(place: Path, check_free: Callable[[], None]) -> Iterator[Path]:
    """Give an empty folder, and move it to its place when the block ends; an old folder there is deleted.

    `check_free` is called at the end. If it or the block raises, the old folder stays. After Ctrl-C either
    the old folder or the new one is there, complete. The parent folder must exist.
    """
    # A sibling, so that renaming stays inside one file system, also if the folder is a link.
    with TemporaryDirectory(
        dir=place.parent, prefix=f".{place.name}.", ignore_cleanup_errors=True
    ) as scratch:
        making, old = Path(scratch, "new"), Path(scratch, "old")
        making.mkdir()
        yield making
        check_free()  # another process may have written it during the block
        try:
            if place.exists():
                place.rename(old)
            making.rename(place)
        except BaseException:
            if old.exists() and not place.exists():
                old.rename(place)
            raise
