"""Stores of flat files: one part for each addition of documents, and a manifest that lists the parts.

Every file is written once. Adding documents writes one more part and a new manifest.
"""

import ctypes
import errno
import hashlib
import json
import mmap
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from farrank_calls.errors import Reason, Unavailable
from farrank_indexes.index_manifest import write_json
from farrank_rankers.json_values import bounded_text, loads
from farrank_settings.errors import ConfigError


class PartWriter:
    """Writes the files of the documents from the place `first` on. `documents` counts those written.

    `manifest` is the file name of the store's manifest. `facts` describe how the store is written. `state` is
    the return value of `flush` before an interruption; files are truncated to that state.
    Raises: ConfigError if the existing store was written with other facts.
    """

    def __init__(
        self,
        store: Path,
        manifest: str,
        facts: Mapping[str, Any],
        first: int,
        names: Sequence[str],
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._store, self._manifest, self._facts, self._first = store, store / manifest, dict(facts), first
        self._listed: list[Any] = []
        if self._manifest.is_file():
            there = _read_sealed(self._manifest)
            # The interruption may have come after `finish`.
            self._listed = [each for each in there["parts"] if each["first"] < first]
            _check_alike(self._manifest, there, self._facts)
        if state is not None:
            _check_alike(self._manifest, state["facts"], self._facts)
        self._folder = store / f"part-{first:012}"
        self.documents = 0 if state is None else int(state["documents"])
        if not self.documents:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
        self._files: dict[str, IO[bytes]] = {}
        for name in names:
            path = self._folder / name
            if state is not None and self.documents:
                os.truncate(path, state["sizes"][name])
            self._files[name] = path.open("ab")

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Append values to a file."""
        self._files[name].write(np.ascontiguousarray(values).data)

    def flush(self) -> dict[str, Any]:
        """Write everything to disk. Returns the state reached."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self._files.items()}
        return {"first": self._first, "documents": self.documents, "sizes": sizes, "facts": self._facts}

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def finish(self, index_id: str, **of_part: Any) -> None:
        """Close the files and append the part to the store's manifest.

        `index_id` is the id of the store's index. `of_part` describes the part's content.
        """
        sizes = self.flush()["sizes"]
        self.close()
        parts = list(self._listed)
        if self.documents:
            files = {
                name: {"bytes": size, "sha256": _digest(self._folder / name)} for name, size in sizes.items()
            }
            part = {"first": self._first, "documents": self.documents, **of_part, "files": files}
            parts = [*parts, {"folder": self._folder.name, **part}]
        else:
            shutil.rmtree(self._folder)
        manifest = {"index": index_id, **self._facts, "parts": parts}
        write_json(self._manifest, {**manifest, "sha256": _seal(manifest)})


class FlatFile:
    """The values of a file, read on request, in rows of `width`. Any thread may read.

    The file is not memory-mapped (see `MappedFile`): small reads are as fast this way.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], width: int | None = None) -> None:
        self._path, self._dtype, self._width = path, dtype, width
        # Use a descriptor instead of a file object: only the end of the last reference closes it.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._row_bytes = dtype.itemsize * (width or 1)
        self._length = os.fstat(self._descriptor).st_size // self._row_bytes

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Read rows. Raises: Unavailable if the file was cut short since it was opened."""
        start, stop, _ = rows.indices(self._length)
        values = np.empty(max(0, stop - start) * (self._width or 1), self._dtype)
        at, done = start * self._row_bytes, 0
        raw = values.view(np.uint8).data
        while done < len(raw):
            read = os.preadv(self._descriptor, [raw[done:]], at + done)
            if not read:
                raise _truncated(self._path)
            done += read
        return values if self._width is None else values.reshape(-1, self._width)

    def at(self, row: int) -> Any:
        """Read one row. Raises: as reading several rows."""
        return self[row : row + 1][0]


_POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14


class MappedFile:
    """The values of a file in memory that the kernel fills and empties, in rows of `width`.

    Any thread may read. The rows look writable, because torch warns of others; nobody may write to them.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], width: int) -> None:
        self._path = path
        with path.open("rb") as file:
            self._size = os.fstat(file.fileno()).st_size
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self._row_bytes = dtype.itemsize * width
        if not self._size:  # an empty file cannot be mapped
            self._values: NDArray[Any] = np.empty((0, width), dtype)
            return
        mapped = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        self._address = np.frombuffer(mapped, np.uint8).ctypes.data
        buffer: Any = (ctypes.c_byte * self._size).from_address(self._address)
        buffer.mapped = mapped  # the rows of a closed index may still be in use
        self._values = np.frombuffer(buffer, dtype).reshape(-1, width)
        self._advise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Wait until rows are in memory, and return them without a copy.

        If a mapped file is truncated, using its rows kills the process. So the kernel is asked here, which
        answers with an error instead; only a file that is truncated within the call afterwards is as bad.
        Raises: Unavailable if the file was truncated since it was opened.
        """
        start, stop, _ = rows.indices(len(self._values))
        if start < stop:
            begin = start * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            self._await(begin, stop * self._row_bytes - begin)
        return self._values[start:stop]

    def _await(self, begin: int, count: int) -> None:
        if self._advise is not None:
            span = (ctypes.c_void_p(self._address + begin), ctypes.c_size_t(count))
            if self._advise(*span, _POPULATE_READ) == 0:
                return
        # Older kernels do not know the advice.
        faulty = self._advise is not None and ctypes.get_errno() == errno.EFAULT
        if faulty or os.fstat(self._descriptor).st_size < self._size:
            raise _truncated(self._path)


def _truncated(path: Path) -> Unavailable:
    return Unavailable(
        f"{path.name} of the index was truncated while it was read; reload the indexes",
        reason=Reason.FIRST_STAGE_DOWN,
    )


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A part opened for reading: the documents from the place `first` on. `facts` come from its writer."""

    folder: Path
    first: int
    documents: int
    facts: Mapping[str, Any]

    def array(self, name: str, dtype: str, length: int | None = None, width: int | None = None) -> FlatFile:
        """Open a file of rows of `width` values. Raises: ConfigError if it does not have `length` values."""
        return FlatFile(*self._checked(name, dtype, length), width)

    def mapped(self, name: str, dtype: str, length: int | None, width: int) -> MappedFile:
        """Map a file of rows of `width` values. Raises: as `array`."""
        return MappedFile(*self._checked(name, dtype, length), width)

    def _checked(self, name: str, dtype: str, length: int | None) -> tuple[Path, np.dtype[Any]]:
        path, of = self.folder / name, np.dtype(dtype)
        size = path.stat().st_size
        if size % of.itemsize or length not in (None, size // of.itemsize):
            raise damaged(path, f"it has {size} bytes")
        return path, of


def read_store_manifest(folder: Path, name: str, known_format: int, index_id: str) -> dict[str, Any]:
    """Read a store's manifest.

    Raises: ConfigError if it is damaged, has another version's format, or belongs to another index.
    """
    path = folder / name
    found = _read_sealed(path)
    if found["format"] != known_format:
        raise ConfigError(
            f"{path}: is of format {found['format']}, and this version of Farrank reads {known_format}; "
            "index the collection again: farrank index … --overwrite"
        )
    if found["index"] != index_id:
        raise ConfigError(f"{path}: belongs to the index {found['index']}, not to {index_id}")
    return found


def _read_sealed(path: Path) -> dict[str, Any]:
    """Read a manifest. Raises: ConfigError if it differs from what was written."""
    try:
        found: dict[str, Any] = loads(bounded_text(path))
        seal = found.pop("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error
    if seal != _seal(found):
        raise damaged(path, "its values have changed")
    return found


def _seal(manifest: Mapping[str, Any]) -> str:
    """Hash a manifest's values: a wrong place in it would give documents the tokens of others."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def open_parts(folder: Path, manifest: Mapping[str, Any], *, verify: bool) -> Iterator[OpenPart]:
    """Open a store's parts. With `verify`, every byte is read and compared with its digest.

    Raises: ConfigError naming the file that is missing or damaged.
    """
    for part in manifest["parts"]:
        for name, facts in part["files"].items():
            path = folder / part["folder"] / name
            if not path.is_file():
                raise damaged(path, "it is missing")
            if path.stat().st_size != facts["bytes"]:
                raise damaged(path, f"it has {path.stat().st_size} bytes instead of {facts['bytes']}")
            if verify and _digest(path) != facts["sha256"]:
                raise damaged(path, "its bytes have changed")
        yield OpenPart(folder / part["folder"], part["first"], part["documents"], part)


def first_free(store: Path, parts: Sequence[Mapping[str, Any]]) -> int:
    """Return the first place after a store's parts. Raises: ConfigError if the parts have a gap."""
    free = 0
    for part in parts:
        if part["first"] != free:
            raise damaged(store, f"a part begins at the place {part['first']} instead of {free}")
        free += part["documents"]
    return free


def why_too_short(manifest: Mapping[str, Any], max_document_tokens: int) -> str:
    """Explain why a store lacks tokens that a ranker with this limit reads. Empty if it has them."""
    kept = int(manifest["max_document_tokens"])
    if max_document_tokens <= kept or not any(part["cut"] for part in manifest["parts"]):
        return ""
    return (
        f"they hold {kept:,} tokens of a document at most, and max_document_tokens is {max_document_tokens:,}"
    )


def damaged(path: Path, why: str) -> ConfigError:
    """Make the error for a store's file that cannot be used."""
    return ConfigError(f"{path}: is damaged ({why}); index the collection again")


def _check_alike(manifest: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Check that an addition has the facts of the store, because one manifest describes all parts.

    Raises: ConfigError.
    """
    for name, fact in here.items():
        if there.get(name) != fact:
            raise ConfigError(
                f"{manifest}: its {name} is {there.get(name)!r}, and the addition has {fact!r}; use the same "
                "settings, or index the collection again"
            )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
