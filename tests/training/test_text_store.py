"""Texts by their ids: the same as from the collection's reader, from any thread and process."""

import gzip
import io
import json
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.context import ForkContext, SpawnContext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farrank_training.text_store import TextStore
from farrank_trec import read_documents
from farrank_trec.errors import InputError
from support.spawned_reads import send_texts

DOCUMENTS = [
    {"id": "a", "title": "Title", "text": "é one\u2028two"},
    {"docid": "b", "contents": "\U0001f600 \u0000"},
    {"pid": "c", "body": " \n"},
    {"_id": "d", "title": None, "text": "last"},
]
TEXTS = {"a": "Title\n\né one\u2028two", "b": "\U0001f600 \u0000", "c": " \n", "d": "last"}


def written(path: Path, documents: Sequence[object], end: str = "\n") -> Path:
    lines = (json.dumps(each, ensure_ascii=index % 2 == 0) + end for index, each in enumerate(documents))
    content = "".join(lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(params=["docs.jsonl", "docs.jsonl.gz"])
def collection(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(tmp_path / request.param, DOCUMENTS)


def test_texts_are_found_by_id(collection: Path) -> None:
    store = TextStore([collection], ["d", "a", "c", "absent"])
    assert set(store) == {"a", "c", "d"}
    assert len(store) == 3
    assert "a" in store
    assert "b" not in store
    assert {doc_id: store.text(doc_id) for doc_id in store} == {each: TEXTS[each] for each in "acd"}
    with pytest.raises(KeyError):
        store.text("b")


def test_numbers_stand_for_texts_that_are_not_blank(collection: Path) -> None:
    store = TextStore([collection], TEXTS)
    numbers = store.numbers(["d", "c", "absent", "a"])
    assert [store.text_at(each) for each in numbers] == [TEXTS["d"], TEXTS["a"]]
    assert store.blank == 1


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
documents = st.lists(
    st.fixed_dictionaries(
        {"id": st.from_regex(r"[a-zé0-9]{1,3}", fullmatch=True), "text": words, "title": words}
    ),
    min_size=1,
    unique_by=lambda document: document["id"],
)


@settings(max_examples=50)
@given(documents, st.data(), st.sampled_from(["\n", "\r\n", "\n\n \t\n"]), st.integers(0, 20))
def test_texts_are_those_of_the_collections_reader(
    found: list[dict[str, str]], data: st.DataObject, end: str, split: int
) -> None:
    """Any text, any line ends, several files, possibly a compressed one, and any wanted ids."""
    ids = [each["id"] for each in found]
    wanted = data.draw(st.sets(st.sampled_from([*ids, "none"])))
    suffixes = data.draw(st.lists(st.sampled_from(["", ".gz"]), min_size=2, max_size=2))
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            written(Path(folder, f"{number}.jsonl{suffix}"), part, end)
            for number, (part, suffix) in enumerate(
                zip((found[:split], found[split:]), suffixes, strict=True)
            )
        ]
        expected = {each.doc_id: each.text for each in read_documents(paths, wanted=wanted)}
        store = TextStore(paths, wanted)
        assert {doc_id: store.text(doc_id) for doc_id in store} == expected


def test_standard_input_and_pipes_are_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: written(pipe, DOCUMENTS[:2]))
    writer.start()
    rest = "".join(json.dumps(each) + "\n" for each in DOCUMENTS[2:]).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rest)))
    store = TextStore([pipe, "-"], TEXTS)
    writer.join()
    assert {doc_id: store.text(doc_id) for doc_id in store} == TEXTS


def test_keys_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path / "docs.jsonl", [{"id": "1", "url": "u", "story": "s", "text": "t"}])
    assert TextStore([path], ["u"], {"id": "url", "text": "story"}).text("u") == "s"


def test_wrong_lines_are_named_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "docs.jsonl", [*DOCUMENTS, {"id": "a", "text": "again"}])
    with pytest.raises(InputError, match=r"docs\.jsonl:5: the id 'a' is already used at .*docs\.jsonl:1"):
        TextStore([path], ["a"])
    assert TextStore([path], ["b"]).text("b") == TEXTS["b"]
    with pytest.raises(InputError, match=r"absent\.jsonl: No such file or directory"):
        TextStore([tmp_path / "absent.jsonl"], ["a"])


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "docs.jsonl", [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}])
    store = TextStore([path], ["b"])
    for others in (
        [{"id": "a", "text": "one"}, {"id": "c", "text": "two"}],
        [{"id": "b", "text": "two" * 99}],
        [],
    ):
        written(path, others)
        with pytest.raises(
            InputError, match=r"docs\.jsonl: byte 27: the file was changed after it had been read"
        ):
            store.text("b")


def test_threads_share_a_store(collection: Path) -> None:
    store = TextStore([collection], TEXTS)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(store.text, list(TEXTS) * 200)) == list(TEXTS.values()) * 200


@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)  # as in Python 3.12 and later
@pytest.mark.parametrize("context", [get_context("fork"), get_context("spawn")], ids=["fork", "spawn"])
def test_processes_share_a_store(collection: Path, context: ForkContext | SpawnContext) -> None:
    store = TextStore([collection], TEXTS)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=send_texts, args=(sender, store, list(TEXTS)))
    child.start()
    sender.close()
    assert receiver.recv() == list(TEXTS.values())
    child.join()
    assert child.exitcode == 0
    assert store.text("a") == TEXTS["a"]


def test_a_store_can_be_pickled(collection: Path) -> None:
    store = TextStore([collection], TEXTS)
    copy = pickle.loads(pickle.dumps(store))
    del store
    assert {doc_id: copy.text(doc_id) for doc_id in copy} == TEXTS


def test_files_are_closed_with_the_store(collection: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = TextStore([collection], TEXTS)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del store
    assert len(os.listdir("/proc/self/fd")) == before
