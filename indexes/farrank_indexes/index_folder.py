"""An index's folder: its content, the preparation of a new index, and the exchange with the old one.

    INDEX/farrank-index.json   the manifest
    INDEX/segments_N, _*       Lucene's index of the documents
    INDEX/vectors/             Lucene's index of their chunks' vectors, if there are any
    INDEX/tokens/, encodings/, token-vectors/, texts/   other data of the documents: `token_store`,
                               `encodings_store`, `token_vector_store`, `text_store`

Every file is written once and never changed, so that an index can be prepared from hard links to another.
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

from farrank_indexes.index_manifest import MANIFEST, read_manifest, write_json
from farrank_settings.errors import ConfigError

_STATE, _NEW, _OLD, _LOCK = "state.json", "new", "old", "lock"
_AT_WORKING_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
_NOT_HERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def check_place(out: Path, *, overwrite: bool) -> None:
    """Raise FileExistsError if a new index must not take this place."""
    if not out.exists():
        return
    if not out.is_dir():
        raise FileExistsError(f"{out} is not a folder")
    if not any(out.iterdir()):
        return
    if _not_ours(out):
        raise FileExistsError(f"{out} is not empty and not an index that Farrank made; it was left unchanged")
    if not overwrite:
        raise FileExistsError(f"{out} holds an index already")


def _not_ours(folder: Path) -> bool:
    try:
        return read_manifest(folder) is None
    except ConfigError:
        return True  # damaged, or a foreign file of this name: its owner may remove it


@dataclass(frozen=True, slots=True)
class Scratch:
    """The folder in which an index is prepared: `new` is next to the index's final place.

    After an interruption only the state saved by `save` is kept; without one, nothing is.
    """

    folder: Path

    @property
    def new(self) -> Path:
        """The folder of the index in preparation."""
        return self.folder / _NEW

    def saved(self) -> dict[str, Any] | None:
        """Return the state that an interrupted preparation saved, or None."""
        try:
            found: dict[str, Any] = json.loads((self.folder / _STATE).read_text(encoding="utf-8"))
            return found
        except FileNotFoundError:
            return None

    def save(self, state: Mapping[str, Any]) -> None:
        """Save the state that is needed to resume, and sync the names of the files written so far."""
        _sync_folders(self.new)
        write_json(self.folder / _STATE, state)
        _sync(self.folder)

    def begin(self) -> None:
        """Remove the files of an interrupted preparation."""
        (self.folder / _STATE).unlink(missing_ok=True)
        shutil.rmtree(self.new, ignore_errors=True)
        self.new.mkdir()

    def swap_in(self, out: Path) -> None:
        """Put the prepared index in the place of the old one, which is deleted.

        A reader that opens `out` finds the complete old or new index. On file systems that cannot exchange
        two folders there is a moment in which it finds neither.
        """
        old = self.folder / _OLD
        shutil.rmtree(old, ignore_errors=True)
        _sync_folders(self.new)
        # After the exchange, `new` is the old index: no preparation may resume with it.
        (self.folder / _STATE).unlink(missing_ok=True)
        _sync(self.folder)
        if not out.exists():
            self.new.rename(out)
        elif not _exchange(self.new, out):
            # If this stops after the first rename, `open_scratch` puts the old index back.
            out.rename(old)
            self.new.rename(out)
        _sync(out.parent)

    def restore_old(self, out: Path) -> None:
        """Put the old index back if a crash came between the two renames of `swap_in`."""
        old = self.folder / _OLD
        if old.exists() and not out.exists():
            old.rename(out)
            _sync(out.parent)


@contextmanager
def open_scratch(out: Path) -> Iterator[Scratch]:
    """Open the scratch folder of a place. It is kept only if an interrupted preparation can resume.

    If a crash in the middle of an exchange left the old index in the scratch folder, it is put back.

    Raises: FileExistsError if another process is preparing an index there.
    """
    folder = out.parent / f".{out.name}.building"
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Scratch(folder)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(f"{out} is being written by another process") from None
        scratch.restore_old(out)
        whole = False
        try:
            yield scratch
            whole = True
        finally:
            scratch.restore_old(out)
            if whole or scratch.saved() is None:
                shutil.rmtree(folder, ignore_errors=True)


def link_index(index: Path, to: Path) -> None:
    """Copy an index's folder with hard links, or with copies of the files where links are impossible."""

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
    """Sync the names of the files in a folder and in all its subfolders to disk."""
    for each, _, _ in os.walk(folder):
        _sync(each)


def _sync(path: Path | str) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically. Returns whether this file system can."""
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
