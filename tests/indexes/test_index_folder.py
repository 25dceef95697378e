"""A prepared index takes its place as a whole: after any interruption the old or the new one is there."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from farrank_indexes import index_folder
from farrank_indexes.document import CollectionError, IndexDocument
from farrank_indexes.index_builder import build_index, change_index
from farrank_indexes.index_folder import Scratch, link_index, open_scratch
from farrank_indexes.index_manifest import IndexManifest, read_manifest

OLD, NEW = IndexManifest(1, 0, "the old one"), IndexManifest(2, 0, "the new one")


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    out = tmp_path / "index"
    out.mkdir()
    OLD.write(out)
    return out


def prepared(scratch: Scratch) -> None:
    scratch.begin()
    NEW.write(scratch.new)
    scratch.save({"read": 2})


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Record the inodes of files and folders that were synced to the disk."""
    synced: set[int] = set()
    sync = os.fsync

    def synced_too(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced_too)
    return synced


def without_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_folder, "_exchange", lambda one, other: False)


def test_two_renames_do_where_folders_cannot_be_exchanged(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_exchange(monkeypatch)
    with open_scratch(out) as scratch:
        prepared(scratch)
        scratch.swap_in(out)
        assert read_manifest(scratch.folder / "old") == OLD
    assert read_manifest(out) == NEW
    assert names(out.parent) == ["index"]


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "renamed twice"])
def test_a_clean_up_that_is_interrupted_leaves_nothing_to_go_on_with(
    out: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:
        without_exchange(monkeypatch)

    def interrupted(folder: Path, **_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_scratch(out) as scratch:  # noqa: PT012  # the end raises
        prepared(scratch)
        scratch.swap_in(out)
        monkeypatch.setattr(shutil, "rmtree", interrupted)
    monkeypatch.undo()
    assert names(out.parent) == [".index.building", "index"]
    with open_scratch(out) as scratch:
        assert scratch.saved() is None
        assert read_manifest(out) == NEW
    assert names(out.parent) == ["index"]


KILLED = """
import os, signal, sys
from pathlib import Path
from farrank_indexes import index_folder
from farrank_indexes.index_manifest import IndexManifest

out, when = Path(sys.argv[1]), sys.argv[2]
exchange, rename = index_folder._exchange, Path.rename

def killed(*paths):
    os.kill(os.getpid(), signal.SIGKILL)

def killed_after_exchange(one, other):
    assert exchange(one, other)
    killed()

def killed_after_rename(path, target):
    rename(path, target)
    if target == out or target.name == when:
        killed()

if when == "exchange":
    index_folder._exchange = killed
elif when == "exchanged":
    index_folder._exchange = killed_after_exchange
else:
    index_folder._exchange = lambda one, other: False
    Path.rename = killed_after_rename
with index_folder.open_scratch(out) as scratch:
    scratch.begin()
    IndexManifest(2, 0, "the new one").write(scratch.new)
    scratch.save({"read": 2})
    scratch.swap_in(out)
"""


@pytest.mark.parametrize(
    ("when", "stands"), [("exchange", OLD), ("exchanged", NEW), ("old", OLD), ("out", NEW)]
)
def test_a_kill_in_the_exchange_leaves_an_index_and_nothing_to_go_on_with(
    out: Path, when: str, stands: IndexManifest
) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(out), when], check=False).returncode == -9
    assert out.exists() == (when != "old")
    with pytest.raises(CollectionError), open_scratch(out) as scratch:  # noqa: PT012
        assert scratch.saved() is None
        assert read_manifest(out) == stands
        raise CollectionError("the next one fails")
    assert read_manifest(out) == stands
    assert names(out.parent) == ["index"]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda out: change_index(out, [IndexDocument("x", "x")]),
            "made by the old one, which cannot be changed",
        ),
        (lambda out: build_index([IndexDocument("x", "x")], out), "holds an index already"),
    ],
    ids=["change", "build"],
)
def test_the_next_writer_finds_the_index_that_a_crash_left_aside(
    out: Path, write: Callable[[Path], int], message: str
) -> None:
    scratch = out.parent / ".index.building"
    scratch.mkdir()
    out.rename(scratch / "old")
    with pytest.raises((CollectionError, FileExistsError), match=message):
        write(out)
    assert read_manifest(out) == OLD
    assert names(out.parent) == ["index"]


def test_names_are_on_the_disk_before_anything_rests_on_them(
    out: Path, monkeypatch: pytest.MonkeyPatch, synced: set[int]
) -> None:
    part = Path("tokens", "0f3a", "part-000000000000")
    exchange = index_folder._exchange

    def exchanged(new: Path, old: Path) -> bool:
        assert inodes(new) <= synced
        assert scratch.folder.stat().st_ino in synced
        assert not (scratch.folder / "state.json").exists()
        return exchange(new, old)

    def inodes(new: Path) -> set[int]:
        return {each.stat().st_ino for each in (new, new / part, *(new / part).parents[:2])}

    monkeypatch.setattr(index_folder, "_exchange", exchanged)
    with open_scratch(out) as scratch:
        scratch.begin()
        (scratch.new / part).mkdir(parents=True)
        scratch.save({"read": 2})
        assert inodes(scratch.new) <= synced
        assert scratch.folder.stat().st_ino in synced
        synced.clear()
        scratch.swap_in(out)
        assert out.parent.stat().st_ino in synced


def test_where_links_are_refused_files_are_copied_and_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: set[int]
) -> None:
    index, copy = tmp_path / "index", tmp_path / "copy"
    files = {"segments_1": b"Lucene's", "_0.cfs": b"\0" * 9, "tokens/0f3a/tokens.json": b"{}"}
    for name, content in {**files, "write.lock": b"", "farrank-index.json": b"{}"}.items():
        (index / name).parent.mkdir(parents=True, exist_ok=True)
        (index / name).write_bytes(content)

    def refused(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "no links here", target)

    monkeypatch.setattr(os, "link", refused)
    link_index(index, copy)
    copied = {str(each.relative_to(copy)): each for each in copy.rglob("*") if each.is_file()}
    assert {name: each.read_bytes() for name, each in copied.items()} == files
    assert {each.stat().st_ino for each in copied.values()} <= synced
    assert not any(each.samefile(index / name) for name, each in copied.items())
