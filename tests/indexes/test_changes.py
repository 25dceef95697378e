"""An interrupted build resumes; documents are added and deleted; a crash leaves the old index intact."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from farrank_first_stage.bm25 import Bm25Config
from farrank_first_stage.config import FirstStageConfig
from farrank_first_stage.stages import open_first_stages
from farrank_indexes.document import CollectionError, IndexDocument
from farrank_indexes.index_builder import IndexOptions, build_index, change_index
from farrank_indexes.index_folder import open_scratch
from farrank_indexes.index_manifest import read_manifest
from farrank_indexes.index_process import IndexingError
from farrank_trec.ranking_fields import RankingFields

DOCUMENTS = [IndexDocument(f"d{n}", f"word number{n} {'even' if n % 2 == 0 else 'odd'}") for n in range(300)]

NEW = [IndexDocument("new", "newword"), IndexDocument("newer", "newword")]


def interrupted(documents: Sequence[IndexDocument], after: int) -> Iterator[IndexDocument]:
    yield from documents[:after]
    raise KeyboardInterrupt


def ranked(path: Path, *queries: str) -> list[list[tuple[str, float, str]]]:
    """Return the rankings of an index, with one process for all queries."""

    async def search() -> list[list[tuple[str, float, str]]]:
        stages = open_first_stages(FirstStageConfig(indexes={"it": Bm25Config(path)}))
        await stages.start()
        try:
            found = [await stages.search("it", query, 1000, 60.0) for query in queries]
            return [[(each.doc_id, each.score, each.text) for each in its] for its in found]
        finally:
            await stages.stop()

    return asyncio.run(search())


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_an_interrupted_build_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    documents = [*DOCUMENTS[:150], IndexDocument("blank", " "), *DOCUMENTS[150:]]
    build_index(documents, whole)
    saving = IndexOptions(save_every_s=0.0)
    with pytest.raises(KeyboardInterrupt):
        build_index(interrupted(documents, 200), out, saving)
    assert names(tmp_path) == [".out.building", "whole"]

    blanks: list[str] = []
    going_on = IndexOptions(resume=True, on_blank=lambda document: blanks.append(document.doc_id))
    others = [IndexDocument("d0", "another text"), *documents[1:]]
    with pytest.raises(CollectionError, match="the first 193 documents differ from those"):
        build_index(others, out, going_on)
    with pytest.raises(
        CollectionError, match="there are 100 documents; the interrupted build had read at least 193"
    ):
        build_index(documents[:100], out, going_on)
    again = [*documents, DOCUMENTS[3]]
    with pytest.raises(CollectionError, match="'d3' is used twice"):
        build_index(again, out, going_on)

    blanks.clear()
    assert build_index(documents, out, going_on) == 300
    assert blanks == ["blank"]
    assert names(tmp_path) == ["out", "whole"]
    assert ranked(out, "word", "even number7") == ranked(whole, "word", "even number7")
    first, second = read_manifest(whole), read_manifest(out)
    assert first is not None
    assert second is not None
    assert (second.documents, second.places, second.skipped_blank_documents) == (300, 300, 1)
    assert first.id != second.id


BUILDER = """
import sys, time
from pathlib import Path
from farrank_indexes.index_builder import IndexOptions, build_index, change_index
sys.path.insert(0, {here!r})
from test_changes import DOCUMENTS, NEW

def documents(made):
    for number, each in enumerate(made, start=1):
        yield each
        if number == {stop}:
            print("here", flush=True)
            time.sleep(600)

options = IndexOptions(save_every_s=0.0)
if {change}:
    change_index(Path({out!r}), documents(NEW), ["d1"], options)
else:
    build_index(documents(DOCUMENTS), Path({out!r}), options)
"""


def killed(out: Path, stop: int, *, change: bool) -> None:
    """Run a builder and kill it. Its indexing process finds its pipe closed."""
    script = BUILDER.format(here=str(Path(__file__).parent), stop=stop, change=change, out=str(out))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == b"here\n"
        builder.send_signal(signal.SIGKILL)
        builder.wait(120)


def test_a_killed_build_leaves_no_index_and_resumes_or_restarts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    killed(out, 200, change=False)
    assert names(tmp_path) == [".out.building"]
    assert build_index(DOCUMENTS, out, IndexOptions(resume=True)) == 300
    (found,) = ranked(out, "word")
    assert sorted(doc_id for doc_id, _, _ in found) == sorted(each.doc_id for each in DOCUMENTS)

    killed(tmp_path / "other", 200, change=False)
    assert build_index(DOCUMENTS[:5], tmp_path / "other") == 5
    assert "removed the files of an interrupted build" in caplog.text
    assert names(tmp_path) == ["other", "out"]


def test_a_killed_build_takes_its_busy_indexing_process_along(tmp_path: Path) -> None:
    """A process that merges for minutes would otherwise write into the folder of the next build."""
    script = BUILDER.format(
        here=str(Path(__file__).parent), stop=200, change=False, out=str(tmp_path / "out")
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == b"here\n"
        (child,) = children("farrank_indexes.index_child")
        busy = psutil.Process(child)
        busy.suspend()  # it no longer reads its pipe
        builder.send_signal(signal.SIGKILL)
        builder.wait(120)
    until_s = time.monotonic() + 120
    while is_running(busy) and time.monotonic() < until_s:
        time.sleep(0.05)
    if is_running(busy):
        busy.kill()
        pytest.fail("the indexing process outlived its parent")


def is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_link_to_an_index_stays_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place, link = tmp_path / "place", tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(place)
    build_index([*DOCUMENTS[:2], IndexDocument("blank", " ")], link)
    said = "left out 1 document without text"
    assert said in caplog.text
    caplog.clear()
    assert change_index(link, NEW) == 4
    # This change did not leave them out.
    assert "left out" not in caplog.text
    assert link.is_symlink()
    changed = read_manifest(place)
    assert changed is not None
    assert (changed.documents, changed.generation) == (4, 1)
    assert (names(tmp_path), names(link.parent)) == (["elsewhere", "place"], ["link"])


def test_two_do_not_write_one_index(tmp_path: Path) -> None:
    with (
        open_scratch(tmp_path / "out"),
        pytest.raises(FileExistsError, match="is being written by another process"),
    ):
        build_index(DOCUMENTS, tmp_path / "out")


def test_documents_are_added_deleted_and_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_index(DOCUMENTS, out)
    built = read_manifest(out)
    assert built is not None

    added = [IndexDocument("new", "newword even"), IndexDocument("newer", "newword odd")]
    assert change_index(out, added, ["d1", "d3"]) == 300
    changed = read_manifest(out)
    assert changed is not None
    assert (changed.id, changed.generation, changed.places) == (built.id, 1, 302)
    fresh, gone = ranked(out, "newword", "number1 number3")
    assert [doc_id for doc_id, _, _ in fresh] == ["new", "newer"]
    assert gone == []

    refused: list[tuple[list[IndexDocument], list[str], str]] = [
        ([IndexDocument("d5", "again")], [], "already in the index: 'd5'"),
        ([], ["d0", "d1", "none"], "nothing was deleted: 'd1', 'none'"),
        ([IndexDocument("x", "x", RankingFields(impacts={"x": 1}))], [], "no 'impacts'"),
        ([IndexDocument("x", "x", RankingFields(vector=(1.0,)))], [], "must have no 'vector'"),
    ]
    for documents, deleted, message in refused:
        with pytest.raises(CollectionError, match=message):
            change_index(out, documents, deleted)
        assert read_manifest(out) == changed
        assert names(tmp_path) == ["out"]

    assert change_index(out, [IndexDocument("d5", "anotherword")], replacing=True) == 300
    once, never = ranked(out, "anotherword", "number5")
    assert ([doc_id for doc_id, _, _ in once], never) == (["d5"], [])
    # Scores equal those of an index that never had the deleted documents, once Lucene has merged them away.
    assert (
        change_index(out, None, [each.doc_id for each in DOCUMENTS if each.doc_id not in ("d1", "d3")]) == 2
    )
    with pytest.raises(CollectionError, match="would be left without documents"):
        change_index(out, None, ["new", "newer"])


@pytest.mark.parametrize("stop", [1, 2])
def test_a_killed_change_leaves_the_old_index(tmp_path: Path, stop: int) -> None:
    out = tmp_path / "out"
    build_index(DOCUMENTS[:10], out)
    before = {each.name: each.read_bytes() for each in out.iterdir() if each.is_file()}
    killed(out, stop, change=True)
    assert {each.name: each.read_bytes() for each in out.iterdir() if each.is_file()} == before
    assert change_index(out, NEW, ["d1"]) == 11
    fresh, gone = ranked(out, "newword", "number1")
    assert ([doc_id for doc_id, _, _ in fresh], gone) == (["new", "newer"], [])


def test_a_dead_lucene_is_reported_and_saved_work_resumes(tmp_path: Path) -> None:
    def documents() -> Iterable[IndexDocument]:
        for number, each in enumerate(DOCUMENTS):
            if number == 250:
                (child,) = children("farrank_indexes.index_child")
                os.kill(child, signal.SIGKILL)
            yield each

    with pytest.raises(IndexingError, match="the indexing process ended with -9"):
        build_index(documents(), tmp_path / "out", IndexOptions(save_every_s=0.0))
    assert names(tmp_path) == [".out.building"]
    assert build_index(DOCUMENTS, tmp_path / "out", IndexOptions(resume=True)) == 300


def children(module: str) -> list[int]:
    """Return the child processes that run a module."""
    found = psutil.Process().children(recursive=True)
    return [each.pid for each in found if module in itertools.chain(each.cmdline())]


def test_an_index_of_an_earlier_version_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "farrank-index.json").write_text(
        '{"documents": 1, "skipped_blank_documents": 0, "created_by": "farrank 0.0.9"}'
    )
    with pytest.raises(CollectionError, match=r"made by farrank 0\.0\.9, which cannot be changed"):
        change_index(tmp_path, [IndexDocument("x", "x")])
    with pytest.raises(FileNotFoundError, match="holds no index that Farrank made"):
        change_index(tmp_path / "none", [IndexDocument("x", "x")])
