"""An index's folder: its manifest, where the next index is prepared, and how it takes the old one's place.

    INDEX/farrank-index.json   the manifest
    INDEX/segments_N, _*       Lucene's index of the documents
    INDEX/vectors/             Lucene's index of their chunks' vectors, where there are any
    INDEX/tokens/, encodings/  what else is kept of them (`farrank_server.stores`)

Every file is written once and never changed, so that an index can be prepared of hard links to another.
"""

import ctypes
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farrank_server.errors import ConfigError
from farrank_server.stores.index_manifest import MANIFEST, read_manifest, write_json

_STATE, _NEW, _OLD, _LOCK = "state.json", "new", "old", "lock"
_AT_WORKING_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
_NOT_HERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def check_place(out: Path, *, overwrite: bool) -> None:
    """Raise FileExistsError if a new index may not take this place."""
    if not out.exists():
        return
    if not out.is_dir():
        raise FileExistsError(f"{out} is not a folder")
    if not any(out.iterdir()):
        return
    if _not_ours(out):
        raise FileExistsError(f"{out} is not empty and not an index that Farrank made; it stays as it is")
    if not overwrite:
        raise FileExistsError(f"{out} holds an index already")


def _not_ours(folder: Path) -> bool:
    try:
        return read_manifest(folder) is None
    except ConfigError:
        return True  # damaged, or somebody else's file of this name: whoever knows may remove it


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where an index is prepared: `new`, beside the place that it will take.

    What was saved by `save` outlives an interruption; without that nothing is left of it.
    """

    folder: Path

    @property
    def new(self) -> Path:
        """The index as far as it is prepared."""
        return self.folder / _NEW

    def saved(self) -> dict[str, Any] | None:
        """Give what an interrupted preparation saved; None if it saved nothing."""
        try:
            found: dict[str, Any] = json.loads((self.folder / _STATE).read_text(encoding="utf-8"))
            return found
        except FileNotFoundError:
            return None

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep what is needed to go on after an interruption, and the names of the files so far."""
        _sync_folders(self.new)
        write_json(self.folder / _STATE, state)
        _sync(self.folder)

    def begin(self) -> None:
        """Take away what an interrupted preparation left."""
        (self.folder / _STATE).unlink(missing_ok=True)
        shutil.rmtree(self.new, ignore_errors=True)
        self.new.mkdir()

    def take_place(self, out: Path) -> None:
        """Put the prepared index where the old one is, which goes.

        Whoever opens `out` finds the old index or the new one, whole; only on file systems that cannot
        exchange two folders there is a moment in which it finds neither.
        """
        old = self.folder / _OLD
        shutil.rmtree(old, ignore_errors=True)
        _sync_folders(self.new)
        # From the exchange on `new` is the old index, with which no preparation may go on.
        (self.folder / _STATE).unlink(missing_ok=True)
        _sync(self.folder)
        if not out.exists():
            self.new.rename(out)
        elif not _exchange(self.new, out):
            # Where this stops half way, `scratch_beside` puts the old index back.
            out.rename(old)
            self.new.rename(out)
        _sync(out.parent)

    def put_back(self, out: Path) -> None:
        """Put the old index back where a crash came between the two renames of `take_place`."""
        old = self.folder / _OLD
        if old.exists() and not out.exists():
            old.rename(out)
            _sync(out.parent)


@contextmanager
def scratch_beside(out: Path) -> Iterator[Scratch]:
    """Open the scratch folder of a place. It stays only where an interrupted preparation can go on.

    An index that a crash left there in the midst of an exchange is in its place again.

    Raises: FileExistsError if another process prepares an index there now.
    """
    folder = out.parent / f".{out.name}.building"
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Scratch(folder)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(f"{out} is being written by another process") from None
        scratch.put_back(out)
        whole = False
        try:
            yield scratch
            whole = True
        finally:
            scratch.put_back(out)
            if whole or scratch.saved() is None:
                shutil.rmtree(folder, ignore_errors=True)


def link_index(index: Path, to: Path) -> None:
    """Make a folder of an index's files, which are linked, or copied where links cannot be made."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)
            _sync(target)

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "write.lock" or name == MANIFEST]

    shutil.copytree(index, to, copy_function=link, ignore=left_out, dirs_exist_ok=True)


def _sync_folders(folder: Path) -> None:
    """Have the names of a folder and of all in it on the disk."""
    for each, _, _ in os.walk(folder):
        _sync(each)


def _sync(path: Path | str) -> None:
    """Have a file on the disk, or the names of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders at once; say whether this file system can."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if rename(_AT_WORKING_FOLDER, bytes(one), _AT_WORKING_FOLDER, bytes(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_HERE:
        return False
    raise OSError(code, os.strerror(code), str(other))
