"""A run that is written query by query, so that a killed program loses no finished query.

    RUN.partial    JSON lines: how the run is made, then each finished query with its documents and scores

The run itself appears at once, when it is published.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from farrank_trec.errors import InputError
from farrank_trec.runs import Run, ScoredDoc, rank, write_run

_FORMAT = 1


class UnfinishedRun:
    """The finished queries of a run at `path`; leaves them on disk until the run is published.

    `made_by` is all that decides the scores, such as the ranker's version. With `resume`, `finished` begins
    with the queries of an earlier program that was made by the same; queries whose `asked` (their text and
    candidates) is another now are left out.
    Raises: InputError if there are finished queries and no `resume`, or they were made by something else;
        if another program writes the same run; if the file cannot be written.
    """

    def __init__(
        self,
        path: Path,
        made_by: Mapping[str, Any],
        *,
        resume: bool = False,
        asked: Mapping[str, str] | None = None,
    ) -> None:
        self._path, self.partial = path, path.with_name(f"{path.name}.partial")
        self._made_by, self._asked = json.loads(json.dumps(made_by)), asked or {}
        self.finished: Run = {}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = self.partial.open("ab+")
        except OSError as error:
            raise InputError(f"{self.partial}: {error.strerror or error}") from error
        try:
            self._claim()
            self._begin(resume)
        except BaseException:
            self._file.close()
            raise

    def _claim(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{self.partial}: another program writes this run") from None

    def _begin(self, resume: bool) -> None:
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        # A kill in the middle of a line leaves it without its end.
        whole = [line for line in lines if line.endswith(b"\n")]
        if whole and not resume:
            raise InputError(
                f"{self.partial}: holds {len(whole) - 1:,} queries of a run that was interrupted: resume it, "
                "or delete this file"
            )
        if not whole:
            self._file.truncate(0)
            self._write({"format": _FORMAT, "made_by": self._made_by})
            return
        if len(whole) < len(lines):
            self._file.truncate(sum(map(len, whole)))
        self._read(whole)

    def _read(self, lines: Sequence[bytes]) -> None:
        try:
            head, *queries = map(json.loads, lines)
            made_by, written = head["made_by"], head["format"]
            kept = {
                each["query_id"]: each["documents"]
                for each in queries
                if each["asked"] == self._asked.get(each["query_id"], "")
            }
            self.finished = {
                query_id: rank(query_id, map(tuple, scored)) for query_id, scored in kept.items()
            }
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(f"{self.partial}: is not of this program, or is damaged; delete it") from error
        if written != _FORMAT:
            raise InputError(f"{self.partial}: is of another version of Farrank; delete it")
        if made_by != self._made_by:
            other = [
                name for name in {**made_by, **self._made_by} if made_by.get(name) != self._made_by.get(name)
            ]
            said = ", ".join(
                f"{name} is {self._made_by.get(name)!r} now and was {made_by.get(name)!r}" for name in other
            )
            raise InputError(f"{self.partial}: two parts of a run must be alike: {said}; name another file")

    def add(self, query_id: str, documents: Sequence[ScoredDoc]) -> None:
        """Keep a finished query. Raises: InputError if it cannot be written."""
        scored = [[each.doc_id, each.score] for each in documents]
        self._write({"query_id": query_id, "asked": self._asked.get(query_id, ""), "documents": scored})
        self.finished[query_id] = list(documents)

    def _write(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise InputError(f"{self.partial}: {error.strerror or error}") from error

    def publish(self, query_ids: Iterable[str], tag: str) -> Run:
        """Write the finished queries as a TREC run, in this order, in place of any older one. Returns it.

        Nothing is written if none is finished. Raises: InputError as `write_run`.
        """
        run = {query_id: self.finished[query_id] for query_id in query_ids if query_id in self.finished}
        if run:
            written = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            try:
                write_run(written, run, tag)
                with written.open("rb") as file:
                    os.fsync(file.fileno())
                written.replace(self._path)
            except OSError as error:
                raise InputError(f"{self._path}: {error.strerror or error}") from error
            finally:
                written.unlink(missing_ok=True)
        self.partial.unlink(missing_ok=True)
        return run

    def close(self) -> None:
        """Close the file. It stays, unless the run was published or it holds no query."""
        if not self.finished:
            with contextlib.suppress(OSError):
                self.partial.unlink(missing_ok=True)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def asked_of(query: str, doc_ids: Iterable[str]) -> str:
    """Digest a query and its candidates, so that a change of either is noticed."""
    return hashlib.sha256("\x00".join([query, *doc_ids]).encode(errors="replace")).hexdigest()[:16]
