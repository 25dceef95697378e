"""An index is complete or absent, and no other folder is touched."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import open_first_stages
from farrank_indexes.document import CollectionError, IndexDocument
from farrank_indexes.index_builder import IndexOptions, build_index
from farrank_indexes.index_manifest import IndexManifest, read_manifest
from farrank_indexes.index_process import IndexingError
from farrank_settings.errors import ConfigError

DOCUMENTS = [IndexDocument(f"doc-{n}", f"number{n} word") for n in range(150)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def search(path: Path, query: str) -> list[str]:
    return asyncio.run(_search(path, query))


async def _search(path: Path, query: str) -> list[str]:
    stage = open_first_stages(FirstStageConfig(indexes={"it": Bm25Config(path)}))
    await stage.start()
    try:
        return [candidate.doc_id for candidate in await stage.search("it", query, 1000, 60.0)]
    finally:
        await stage.stop()


def test_build_refuse_and_overwrite(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "deep" / "index"
    heard: list[int] = []
    documents = [*DOCUMENTS, IndexDocument("blank", " \n\x00"), IndexDocument("empty", "")]
    assert build_index(documents, out, IndexOptions(progress=heard.append)) == 150
    assert heard == [64, 128, 152]
    manifest = read_manifest(out)
    assert manifest is not None
    assert (manifest.documents, manifest.skipped_blank_documents) == (150, 2)
    assert manifest.created_by.startswith("farrank ")
    assert "left out 2 documents without text" in caplog.text

    with pytest.raises(FileExistsError, match="holds an index already"):
        build_index([IndexDocument("new", "newword")], out)
    with pytest.raises(CollectionError, match="'twice' is used twice"):
        build_index([IndexDocument("twice", "x"), IndexDocument("twice", "y")], out, overwrite=True)
    assert len(search(out, "word")) == 150

    assert build_index([IndexDocument("new", "newword")], out, overwrite=True) == 1
    assert names(out.parent) == ["index"]
    assert search(out, "newword word") == ["new"]


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "renamed twice"])
def test_ctrl_c_while_an_index_is_replaced_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    out = tmp_path / "index"
    out.mkdir()
    IndexManifest(1, 0, "a test").write(out)
    rename = Path.rename

    def interrupted(new: Path, old: Path) -> bool:
        if exchanges:
            raise KeyboardInterrupt
        return False

    def then_interrupted(path: Path, target: Path) -> None:
        rename(path, target)
        if target.name == "old":
            raise KeyboardInterrupt

    monkeypatch.setattr("farrank_indexes.index_folder._exchange", interrupted)
    monkeypatch.setattr(Path, "rename", then_interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_index([IndexDocument("new", "newword")], out, overwrite=True)
    assert names(tmp_path) == ["index"]
    assert read_manifest(out) == IndexManifest(1, 0, "a test")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_somebody_else_stays(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "farrank-index.json").write_text('{"documents": "not a manifest of ours"}')
    with pytest.raises(FileExistsError, match="not an index that Farrank made"):
        build_index(DOCUMENTS, tmp_path, overwrite=overwrite)
    assert names(tmp_path) == ["farrank-index.json", "thesis.tex"]


def test_a_file_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a folder"):
        build_index(DOCUMENTS, tmp_path / "file", overwrite=True)


def failing() -> Iterator[IndexDocument]:
    yield from DOCUMENTS
    raise CollectionError("docs.jsonl, line 151: bad")


def interrupted() -> Iterator[IndexDocument]:
    yield from DOCUMENTS
    raise KeyboardInterrupt("Ctrl-C")


@pytest.mark.parametrize(
    ("documents", "error", "message"),
    [
        (failing, CollectionError, "line 151"),
        (interrupted, KeyboardInterrupt, "Ctrl-C"),
        (lambda: iter([]), CollectionError, "no document to index"),
        (lambda: iter([IndexDocument("blank", " ")]), CollectionError, "no document to index"),
    ],
    ids=["collection error", "Ctrl-C", "nothing", "blank only"],
)
def test_nothing_is_left_after_a_failure(
    tmp_path: Path, documents: Callable[[], Iterator[IndexDocument]], error: type[BaseException], message: str
) -> None:
    (tmp_path / "index").mkdir()  # empty, so an index may be built into it
    with pytest.raises(error, match=message):
        build_index(documents(), tmp_path / "index")
    assert names(tmp_path) == ["index"]
    assert names(tmp_path / "index") == []


def test_an_index_that_cannot_be_written_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farrank_indexes.index_process._HEAP_MIB", 1)
    with pytest.raises(IndexingError, match=r"(?s)last lines:.*heap"):
        build_index(DOCUMENTS, tmp_path / "index")
    assert names(tmp_path) == []


def test_without_pyserini_the_error_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'farrank\[lucene\]'"):
        build_index(DOCUMENTS, tmp_path / "index")
    assert names(tmp_path) == []


BUILDER = """
import sys, time
from pathlib import Path
from farrank_indexes.document import IndexDocument
from farrank_indexes.index_builder import build_index

def documents():
    for n in range(200):
        yield IndexDocument(str(n), "word")
    print("half way", flush=True)
    time.sleep(600)

build_index(documents(), Path(sys.argv[1]))
"""


def test_ctrl_c_in_a_terminal_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "index")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == b"half way\n"
        assert names(tmp_path) != []
        builder.send_signal(signal.SIGINT)
        assert builder.wait(120) != 0
    assert names(tmp_path) == []
